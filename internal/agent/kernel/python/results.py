"""Results in the form in which they are sent."""


def clip(text, limit):
    if len(text) <= limit:
        return text
    return text[:limit] + f"\n… {len(text) - limit} more characters were left out"


def encode_bundle(data):
    bundle = {}
    for mime, value in data.items():
        if isinstance(value, (bytes, bytearray, memoryview)):
            value = base64.b64encode(bytes(value)).decode()
        elif isinstance(value, str):
            if mime in ("image/png", "image/jpeg", "application/pdf"):
                value = value.replace("\n", "")
            elif mime == "text/plain":
                value = clip(value, TEXT_LIMIT)
        else:
            value = plain(value)
        bundle[str(mime)] = value
    return bundle


def fit(bundle, output):
    """Drop the largest parts of a result that is too big to send."""
    sizes = {mime: len(dumps(value)) for mime, value in bundle.items()}
    while sum(sizes.values()) > BUNDLE_LIMIT:
        mime = max(sizes, key=sizes.get)
        output.write("err", f"[{mime} of a result left out: {sizes[mime]} bytes; a result may have {BUNDLE_LIMIT}. Write it to a file.]\n")
        output.flush()
        del bundle[mime], sizes[mime]
    return bundle


def plain(value, depth=0):
    """value as JSON has it: NaN is null, what has no JSON form is its text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        value = float(value)
        return value if value - value == 0 else None
    if depth > 50:
        return str(value)
    if isinstance(value, dict):
        return {str(k): plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v, depth + 1) for v in value]
    if hasattr(value, "isoformat"):
        text = value.isoformat()
        return None if text == "NaT" else text
    if hasattr(value, "tolist"):
        return plain(value.tolist(), depth + 1)
    text = str(value)
    return None if text in ("<NA>", "NaT") else text


def frame_data(frame):
    rows, columns = frame.shape
    if rows * columns > DATA_CELLS:
        return None
    return {str(name): [plain(v) for v in frame.iloc[:, i].tolist()] for i, name in enumerate(frame.columns)}


def name_of(kind):
    try:
        return str(kind.__name__)
    except Exception:
        return "Exception"


@contextmanager
def shortened(error):
    """Leaves the middle out of an error's long tracebacks, and of those it came
    from, while it is formatted."""
    cuts, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        cut = cut_traceback(error.__traceback__)
        if cut:
            cuts.append(cut)
        error = error.__cause__ or error.__context__
    try:
        yield
    finally:
        for frame, rest in cuts:
            frame.tb_next = rest


def cut_traceback(traceback):
    """Takes the middle frames out; returns where, and what was there."""
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    if len(frames) <= FIRST_FRAMES + LAST_FRAMES:
        return None
    last = frames[FIRST_FRAMES - 1]
    rest = last.tb_next
    last.tb_next = frames[-LAST_FRAMES]
    return last, rest


class SavedImages:
    """Shows what Pillow saves to a path, and so what matplotlib does, as E2B's
    service does it. Acts when Pillow is imported."""

    def __init__(self, output):
        self.output = output

    def find_spec(self, name, path=None, target=None):
        if name != "PIL.Image":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                module.Image.save = self.showing(module.Image.save)

            spec.loader.exec_module = exec_module
        return spec

    def showing(self, save):
        @functools.wraps(save)
        def save_and_show(image, fp, *args, **kwargs):
            save(image, fp, *args, **kwargs)
            if isinstance(fp, str) and not self.output.direct and self.output.pictures < SAVED_IMAGES:
                self.output.pictures += 1
                from IPython.display import display

                display(image)

        return save_and_show
