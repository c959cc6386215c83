"""Several sandboxes work on one folder, which outlives them."""

import uuid
from concurrent.futures import ThreadPoolExecutor

from e2b import Sandbox, Volume

numbers = [1, 2, 3]
volume = Volume.create(f"results-{uuid.uuid4().hex[:8]}")
try:
    volume.make_dir("/in")
    for number in numbers:
        volume.write_file(f"/in/{number}", str(number))

    def square(number):
        with Sandbox.create(volume_mounts={"/work": volume}) as sandbox:
            sandbox.commands.run(f"mkdir -p /work/out && n=$(cat /work/in/{number}) && echo $((n * n)) > /work/out/{number}")

    with ThreadPoolExecutor() as pool:
        list(pool.map(square, numbers))

    # No sandbox is left, and the results are.
    squares = [volume.read_file(entry.path) for entry in volume.list("/out")]
    print(sum(map(int, squares)))
finally:
    Volume.destroy(volume.volume_id)
