"""Waiting for conditions, since no test sleeps and hopes."""

import time


def eventually(condition, within, what):
    """Calls condition until it is truthy and returns that value; fails after
    `within` seconds, naming `what` was awaited."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what} (last seen: {value!r})")
        time.sleep(0.05)
