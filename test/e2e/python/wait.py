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


def steady(value, seconds, within, what):
    """Calls value until it has been the same for some seconds, and returns it; fails
    after `within` seconds, naming `what` was awaited."""
    last, since = value(), time.monotonic()
    deadline = since + within
    while time.monotonic() - since < seconds:
        if time.monotonic() > deadline:
            raise AssertionError(f"not steady within {within} s: {what} (last seen: {last!r})")
        time.sleep(0.05)
        if (now := value()) != last:
            last, since = now, time.monotonic()
    return last
