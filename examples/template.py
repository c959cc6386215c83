"""Make a template of a web app, and a sandbox in which the app runs already."""

from e2b import Sandbox, Template, wait_for_port

template = (
    Template()
    .from_base_image()
    .set_workdir("/srv/web")
    .copy("web/requirements.txt", ".")  # first what seldom changes: each step is kept for the next build
    .run_cmd("pip install -q -r requirements.txt")
    .copy("web/app.py", ".")
    .set_envs({"KIND": "template"})
    .set_start_cmd("flask run --port 8000", wait_for_port(8000))
)

# Two tags for one build: v1 stays what it is, stable may be moved to the next.
Template.build(template, "example-web", tags=["v1", "stable"], cpu_count=1, memory_mb=512)

with Sandbox.create("example-web:stable") as sandbox:
    print(sandbox.commands.run("curl -s localhost:8000").stdout, end="")
