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
    sizes = {mime: len(json.dumps(value)) for mime, value in bundle.items()}
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
