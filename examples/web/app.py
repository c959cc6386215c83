"""A small web app: GET / says hello."""

import os

from flask import Flask

app = Flask(__name__)


@app.get("/")
def hello():
    return f"hello from a {os.environ['KIND']}\n"
