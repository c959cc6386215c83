"""What a matplotlib figure shows, as data.

Keys, types and names are those of E2B's package e2b_charts 1.0, which the E2B
clients read. Axes of which something would be lost, because they mix kinds or
hold what no kind has, are "unknown": whoever draws the data again then takes
the picture. A test compares both and names the deliberate differences
(chart_test.go).
"""

CHART_MIME = "application/vnd.tombolo.chart+json"
CHART_POINTS = 50_000  # points, bars, boxes and ticks; a figure with more has no chart


def figure_chart(figure):
    """The chart of a figure; None when it shows no data, or too much of it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return chart_of_axes(figure)
    except Exception:
        return None  # the picture is there; this is an extra


def chart_of_axes(figure):
    axes = figure.get_axes()
    if not any(ax.has_data() for ax in axes) or sum(map(count_data, axes)) > CHART_POINTS:
        return None
    charts = [Axes(ax).chart() for ax in axes]
    if len(charts) == 1:
        return charts[0]
    title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else ""
    return {"type": "superchart", "title": title, "elements": charts}


def count_data(ax):
    count = len(ax.patches) + len(ax.get_xticks()) + len(ax.get_yticks())
    count += sum(len(line.get_xdata(False)) for line in ax.lines)
    return count + sum(len(c.get_offsets()) for c in ax.collections)


class Axes:
    def __init__(self, ax):
        self.ax = ax
        self.x, self.y = Axis(ax.xaxis, ax.get_xscale()), Axis(ax.yaxis, ax.get_yscale())
        self.flat = False  # bars or boxes lie along x

    def chart(self):
        kind, elements = self.recognise()
        chart = {"type": kind, "title": self.ax.get_title() or None, "elements": elements}
        if kind in ("pie", "unknown"):
            return chart
        # Of flat bars and boxes x is what they stand side by side on, too.
        axes = (self.y, self.x) if self.flat else (self.x, self.y)
        for name, axis in zip("xy", axes):
            chart[name + "_label"] = axis.label or None
            chart[name + "_unit"] = unit_of(axis.label)
            if kind in ("line", "scatter"):
                chart[name + "_ticks"] = [axis.tick(at) for at in axis.ticks]
                chart[name + "_tick_labels"] = axis.tick_labels
                chart[name + "_scale"] = axis.scale
        return chart

    def recognise(self):
        """The kind that all of the axes' artists are of, and its elements."""
        ax = self.ax
        lines, patches = list(ax.lines), list(ax.patches)
        collections = [c for c in ax.collections if len(c.get_paths())]  # seaborn adds empty bands
        if ax.images or ax.tables or ax.artists or ax.name == "3d":
            return "unknown", []
        if not collections and all(type(p).__name__ == "PathPatch" for p in patches):
            boxes = self.boxes()
            if boxes:
                return "box_and_whisker", boxes
        if not collections and not patches:
            return "line", self.lines()
        if all(is_reference(line) for line in lines):
            if not patches and all(type(c).__name__ == "PathCollection" for c in collections):
                return "scatter", [self.dots(c) for c in collections]
            if not collections and all(type(p).__name__ == "Wedge" for p in patches):
                return "pie", [wedge_of(p) for p in patches]
            if not collections and all(type(p).__name__ == "Rectangle" for p in patches):
                bars = self.bars()
                return ("bar", bars) if bars else ("unknown", [])
        return "unknown", []

    def lines(self):
        """Lines in the coordinates of the data: not those of axhline and grids."""
        elements = []
        for line in self.ax.lines:
            if line.get_transform() != self.ax.transData or not len(line.get_xdata(False)):
                continue
            label = str(line.get_label())
            if label.startswith("_child"):
                label = "Line " + label[len("_child") :]
            xs = self.x.values(line.get_xdata(True), line.get_xdata(False))
            ys = self.y.values(line.get_ydata(True), line.get_ydata(False))
            elements.append({"label": label, "points": list(zip(xs, ys))})
        return elements

    def dots(self, collection):
        points = [(self.x.value(x), self.y.value(y)) for x, y in collection.get_offsets()]
        return {"label": str(collection.get_label()), "points": points}

    def bars(self):
        containers = [c for c in self.ax.containers if type(c).__name__ == "BarContainer"]
        self.flat = any(getattr(c, "orientation", None) == "horizontal" for c in containers)
        axis = self.y if self.flat else self.x
        places = [[extent(bar, self.flat) for bar in c] for c in containers]
        group_width = sum(max((width for _, width in p), default=0) for p in places)
        elements = []
        for number, (container, place) in enumerate(zip(containers, places)):
            group = str(container.get_label())
            if group.startswith("_"):
                group = "Group " + (group.removeprefix("_container") if group.startswith("_container") else str(number))
            for bar, (at, _) in zip(container, place):
                value = bar.get_width() if self.flat else bar.get_height()
                elements.append({"label": axis.name(at, len(place), group_width), "group": group, "value": finite(value)})
        return elements

    def boxes(self):
        """Boxes with median and whiskers, made of lines or of patches; [] when
        something else is among them."""
        lines = [corners(line.get_xdata(False), line.get_ydata(False)) for line in self.ax.lines]
        shapes = [s for s in lines if is_closed(s)]
        shapes += [[(float(x), float(y)) for x, y in p.get_path().vertices[:-1]] for p in self.ax.patches]
        rest = [s for s in lines if s and not is_closed(s)]
        for axis, flat in ((self.x, False), (self.y, True)):
            boxes = [box_of(turned(s, flat), [turned(r, flat) for r in rest]) for s in shapes]
            if not boxes or not all(boxes):
                continue
            self.flat = flat
            boxes.sort(key=lambda box: box["at"])
            width = max(box["width"] for box in boxes) * len(boxes)
            for box in boxes:
                box["label"] = axis.name(box.pop("at"), len(boxes), width)
                del box["width"]
            return boxes
        return []


class Axis:
    def __init__(self, axis, scale):
        converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
        kind = type(converter).__name__
        self.label = str(axis.get_label().get_text())
        self.ticks = [float(at) for at in axis.get_ticklocs()]
        self.tick_labels = [str(label.get_text()) for label in axis.get_ticklabels()]
        names = getattr(axis.units, "_mapping", {}) if "Category" in kind else {}
        self.names = {float(at): str(name) for name, at in names.items()}
        self.dates = "date" in kind.lower()
        self.freq = getattr(axis, "freq", None)  # of an axis of pandas' periods
        fixed = type(axis.get_major_locator()).__name__, type(axis.get_major_formatter()).__name__
        self.named = bool(names) or "FixedLocator" in fixed or "FixedFormatter" in fixed
        if self.dates or self.freq is not None:
            self.scale = "datetime"
        elif names or scale == "linear" and self._counts_names():
            self.scale = "categorical"
        else:
            self.scale = scale

    def _counts_names(self):
        pairs = list(zip(self.ticks, self.tick_labels))
        return bool(pairs) and all(at == i and text != str(i) for i, (at, text) in enumerate(pairs))

    def tick(self, at):
        if self.dates:
            from matplotlib.dates import num2date

            return num2date(at).isoformat()
        return self.value(at) if self.freq is not None else finite(at)

    def values(self, given, at):
        """Positions as the user gave them."""
        if len(given) != len(at):
            given = at
        return [self._as_given(g, a) for g, a in zip(given, at)]

    def _as_given(self, given, at):
        if isinstance(given, str):
            return given
        if hasattr(given, "to_timestamp"):
            given = given.to_timestamp()  # a pandas Period
        if hasattr(given, "isoformat"):
            return None if str(given) == "NaT" else given.isoformat()
        if type(given).__name__ == "datetime64":
            text = str(given.astype("datetime64[s]"))
            return None if text == "NaT" else text
        return self.value(at)

    def value(self, at):
        """A position: a number, a name or a date; None for a gap."""
        at = finite(at)
        if at is None:
            return None
        if self.dates:
            from matplotlib.dates import num2date

            return num2date(at).replace(tzinfo=None).isoformat()
        if self.freq is not None:
            from pandas import Period

            return Period(ordinal=int(at), freq=self.freq).to_timestamp().isoformat()
        return self.names.get(at, at)

    def name(self, at, count, width):
        """The label of one of count things at this position, which stand in
        groups of this width on their ticks."""
        ticks = sorted((tick, text) for tick, text in zip(self.ticks, self.tick_labels) if text)
        if self.named and ticks:
            nearest, text = min(ticks, key=lambda tick: abs(tick[0] - at))
            if len(ticks) == count > 1:
                width = min(after[0] - before[0] for before, after in zip(ticks, ticks[1:]))
            if abs(nearest - at) <= width / 2:
                return text
        value = self.value(at)
        return f"{value:g}" if isinstance(value, float) else str(value)


def finite(value):
    value = float(value)
    return value if value - value == 0 else None


def is_reference(line):
    """A line beside the data: a grid, a limit, the error of a bar."""
    if line.get_transform() != line.axes.transData:
        return True
    points = corners(line.get_xdata(False), line.get_ydata(False))
    return len(points) == 2 and (points[0][0] == points[1][0] or points[0][1] == points[1][1])


def wedge_of(wedge):
    angle = abs(float(wedge.theta2) - float(wedge.theta1))
    if angle:  # matplotlib has it in single precision; rounded as e2b_charts does
        digits = max(1, 8 - int(f"{angle:e}".split("e")[1]))
        angle = float(f"{angle:.{digits}g}")
    return {"label": str(wedge.get_label()), "angle": finite(angle), "radius": finite(wedge.r)}


def extent(bar, flat):
    """Middle and width of a bar on the axis on which bars stand side by side."""
    if flat:
        return float(bar.get_y() + bar.get_height() / 2), abs(float(bar.get_height()))
    return float(bar.get_x() + bar.get_width() / 2), abs(float(bar.get_width()))


def corners(xs, ys):
    return [(float(x), float(y)) for x, y in zip(xs, ys)]


def turned(points, flat):
    return [(y, x) for x, y in points] if flat else points


def is_closed(points):
    return len(points) >= 5 and points[0] == points[-1]


def box_of(shape, lines):
    """A box that stands along y, with its median and whiskers; None when it
    has none."""
    xs, ys = [x for x, _ in shape], [y for _, y in shape]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    if len(shape) >= 11:  # with notches, which may reach out of the box
        low, high = ys[0], ys[5]
    middle, near = (left + right) / 2, (right - left) * 1e-3
    across, whiskers, dots = [], [], []
    for points in lines:
        if len(points) == 2 and points[0][1] == points[1][1] and abs(points[0][0] + points[1][0] - 2 * middle) <= near:
            across.append((abs(points[1][0] - points[0][0]), points[0][1]))
        elif all(abs(x - middle) <= near for x, _ in points):
            values = [y for _, y in points]
            if len(points) == 2 and (low in values or high in values):
                whiskers += values
            else:
                dots += values
    medians = [y for _, y in across if low < y < high]
    medians += [y for _, y in sorted(across, reverse=True) if low <= y <= high]  # on an edge, where a cap may be, too
    if not medians or not whiskers:
        return None
    least, most = min(whiskers + [low]), max(whiskers + [high])
    return {
        "at": middle,
        "width": right - left,
        "min": least,
        "first_quartile": low,
        "median": medians[0],
        "third_quartile": high,
        "max": most,
        "outliers": [y for y in dots if y < least or y > most],
    }


def unit_of(label):
    """"m" of "Height (m)" or "Height [m]"."""
    import re

    found = re.search(r"\s\((.*?)\)|\[(.*?)\]", label)
    return (found.group(1) or found.group(2)) if found else None
