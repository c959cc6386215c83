"""Prepare once, try several ways from there, keep the best.

One sandbox loads the data. Each attempt is a fork of it, with the data in memory
already, and cannot spoil the others. The best one is paused and brought back.
"""

from e2b_code_interpreter import Sandbox

prepare = """
data = [3, 1, 4, 1, 5, 9, 2, 6]
score = lambda guess: sum(abs(guess - x) for x in data)
"""
attempts = ["2", "3", "5"]  # what an agent would propose

base = Sandbox.create(timeout=300)
copies = []
try:
    base.run_code(prepare)

    copies = base.fork(count=len(attempts))
    scores = {}
    for copy, guess in zip(copies, attempts):
        if isinstance(copy, Exception):  # each fork succeeds or fails for itself
            raise copy
        scores[copy.sandbox_id] = float(copy.run_code(f"best = {guess}\nscore(best)").text)

    winner = min(scores, key=scores.get)
    Sandbox.pause(winner)  # memory, processes and files go to disk
    back = Sandbox.connect(winner)  # the same sandbox, where it was
    print(back.run_code("f'{best} is off by {score(best)}'").text)
finally:
    for sandbox in [base, *copies]:
        if not isinstance(sandbox, Exception):
            sandbox.kill()
