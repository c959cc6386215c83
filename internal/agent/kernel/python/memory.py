"""What a snapshot of this process must get rid of: shared randomness, garbage."""


def reseed(seed):
    """Give this process random state of its own: clones of a snapshot share it.

    Only what is imported; os.urandom and secrets ask the sandbox's kernel.
    """
    for name, mix in RESEED.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            mix(module, seed)
        except Exception as e:  # a module of the user's with that name
            print(f"reseed {name}: {type(e).__name__}: {e}", file=sys.stderr)


def reseed_numpy(module, seed):
    module.seed([int.from_bytes(seed[i : i + 4], "little") for i in range(0, len(seed) - 3, 4)])


def reseed_uuid(module, seed):
    for name in ("_node", "_last_timestamp", "_last_timestamp_v7"):
        if hasattr(module, name):
            setattr(module, name, None)
    if hasattr(module, "_last_counter_v7"):
        module._last_counter_v7 = 0


def reseed_tempfile(module, seed):
    module._name_sequence = None


RESEED = {
    # Bytes are hashed on the way, so that random and numpy differ.
    "random": lambda module, seed: module.seed(b"random" + seed),
    "numpy.random": reseed_numpy,
    "torch": lambda module, seed: module.manual_seed(int.from_bytes(seed[:7], "little")),
    "_ssl": lambda module, seed: module.RAND_add(seed, float(len(seed))),
    "uuid": reseed_uuid,
    "tempfile": reseed_tempfile,
    # What it knows of folders can be older than a restored disk.
    "importlib": lambda module, seed: module.invalidate_caches(),
}


def settle_memory():
    import ctypes
    import linecache

    linecache.clearcache()
    gc.collect()
    gc.freeze()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass  # not glibc
