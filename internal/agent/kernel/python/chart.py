"""What a matplotlib figure shows, as data.

The keys and the types (line, scatter,
bar, pie, box_and_whisker, superchart, unknown) are those that the E2B clients
read; what cannot be recognised is "unknown" with no elements.
"""

CHART_MIME = "application/vnd.tombolo.chart+json"
CHART_POINTS = 50_000  # a figure with more has no chart


def figure_chart(figure):
    """The chart of a figure, None when it has no axes or too many points."""
    try:
        charts = [Axes(ax).chart() for ax in figure.axes if ax.get_visible()]
    except Exception:
        return None  # the image is there; this is an extra
    if not charts or sum(count_points(chart) for chart in charts) > CHART_POINTS:
        return None
    if len(charts) == 1:
        return charts[0]
    title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else ""
    return {"type": "superchart", "title": title, "elements": charts}


def count_points(chart):
    return sum(len(e.get("points") or [0]) for e in chart["elements"])


class Axes:
    def __init__(self, ax):
        self.ax = ax
        self.x, self.y = Axis(ax.xaxis, ax.get_xscale()), Axis(ax.yaxis, ax.get_yscale())

    def chart(self):
        for kind, elements in (
            ("pie", self.pie),
            ("box_and_whisker", self.boxes),
            ("bar", self.bars),
            ("scatter", self.scatter),
            ("line", self.lines),
        ):
            found = elements()
            if found:
                return self.describe(kind, found)
        return self.describe("unknown", [])

    def describe(self, kind, elements):
        chart = {"type": kind, "title": self.ax.get_title(), "elements": elements}
        if kind == "pie":
            return chart
        for name, axis in (("x", self.x), ("y", self.y)):
            label = axis.axis.get_label().get_text()
            chart[name + "_label"], chart[name + "_unit"] = label, unit_of(label)
            if kind in ("line", "scatter"):
                chart[name + "_ticks"] = [axis.value(at) for at in axis.ticks]
                chart[name + "_tick_labels"] = axis.labels
                chart[name + "_scale"] = axis.scale
        return chart

    def pie(self):
        wedges = [p for p in self.ax.patches if type(p).__name__ == "Wedge"]
        return [
            {"label": w.get_label(), "angle": float(abs(w.theta2 - w.theta1)), "radius": float(w.r)} for w in wedges
        ]

    def bars(self):
        elements = []
        containers = [c for c in self.ax.containers if type(c).__name__ == "BarContainer"]
        for number, container in enumerate(containers):
            group = container.get_label()
            if group.startswith("_"):
                group = f"Group {number}"
            flat = getattr(container, "orientation", "vertical") == "horizontal"
            for bar in container:
                if flat:
                    label, value = self.y.name(bar.get_y() + bar.get_height() / 2), bar.get_width()
                else:
                    label, value = self.x.name(bar.get_x() + bar.get_width() / 2), bar.get_height()
                elements.append({"label": label, "group": group, "value": float(value)})
        return elements

    def scatter(self):
        elements = []
        for c in self.ax.collections:
            if type(c).__name__ == "PathCollection":
                elements.append(self.points(c, [tuple(p) for p in c.get_offsets()], len(elements)))
        if any(line.get_linestyle() not in ("None", "", " ") for line in self.data_lines()):
            return []  # marks on a line
        for line in self.data_lines():
            elements.append(self.points(line, list(zip(line.get_xdata(False), line.get_ydata(False))), len(elements)))
        return elements

    def lines(self):
        elements = []
        for line in self.data_lines():
            elements.append(self.points(line, list(zip(line.get_xdata(False), line.get_ydata(False))), len(elements)))
        return elements

    def data_lines(self):
        """Lines in the coordinates of the data: not those of axhline and grids."""
        return [line for line in self.ax.lines if line.get_transform() == self.ax.transData and len(line.get_xdata())]

    def points(self, artist, points, number):
        label = artist.get_label()
        if label.startswith("_"):
            label = f"Series {number + 1}"
        return {"label": label, "points": [(self.x.value(x), self.y.value(y)) for x, y in points[: CHART_POINTS + 1]]}

    def boxes(self):
        shapes = [list(zip(line.get_xdata(False), line.get_ydata(False))) for line in self.data_lines()]
        rectangles = [s for s in shapes if is_rectangle(s)]
        rectangles += [
            [tuple(v) for v in p.get_path().vertices[:5]]
            for p in self.ax.patches
            if type(p).__name__ == "PathPatch" and is_rectangle([tuple(v) for v in p.get_path().vertices[:5]])
        ]
        for position, swap in ((self.x, False), (self.y, True)):
            turned = [[(y, x) for x, y in s] for s in shapes] if swap else shapes
            found = [[(y, x) for x, y in r] for r in rectangles] if swap else rectangles
            boxes = [box_of(r, turned, position) for r in found]
            if boxes and all(boxes):
                return sorted(boxes, key=lambda box: box.pop("at"))
        return []


class Axis:
    def __init__(self, axis, scale):
        self.axis = axis
        converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
        kind = type(converter).__name__
        self.scale = "datetime" if "Date" in kind else "categorical" if "Category" in kind else scale
        names = getattr(axis.units, "_mapping", {}) if self.scale == "categorical" else {}
        self.names = {at: str(name) for name, at in names.items()}
        self.ticks = [float(at) for at in axis.get_ticklocs()]
        self.labels = [label.get_text() for label in axis.get_ticklabels()]

    def value(self, at):
        """A position as the user gave it."""
        at = float(at)
        if self.scale == "datetime":
            from matplotlib.dates import num2date

            return num2date(at).isoformat()
        return self.names.get(at, at if at - at == 0 else None)

    def name(self, at):
        """A position as its label."""
        for tick, label in zip(self.ticks, self.labels):
            if label and abs(tick - at) < 1e-6:
                return label
        return str(self.value(at))


def is_rectangle(points):
    return (
        len(points) == 5
        and points[0] == points[4]
        and len({x for x, _ in points}) <= 4
        and len({y for _, y in points}) == 2
        and len({x for x, _ in points}) == 2
    )


def box_of(rectangle, lines, position):
    """A box along y with its median and caps; None when it has none."""
    xs, ys = [x for x, _ in rectangle], [y for _, y in rectangle]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    middle = (left + right) / 2
    near = (right - left) * 1e-3
    flat, fliers = [], []
    for points in lines:
        if len(points) == 2 and points[0][1] == points[1][1] and abs(points[0][0] + points[1][0] - 2 * middle) <= near:
            flat.append((abs(points[1][0] - points[0][0]), points[0][1]))
        elif all(abs(x - middle) <= near for x, _ in points) and not is_whisker(points, low, high):
            fliers += [float(y) for _, y in points]
    medians = [y for width, y in flat if abs(width - (right - left)) <= near and low <= y <= high]
    caps = [y for width, y in flat if width < right - left - near]
    if not medians or len(caps) < 2:
        return None
    return {
        "at": middle,
        "label": position.name(middle),
        "min": float(min(caps)),
        "first_quartile": float(low),
        "median": float(medians[0]),
        "third_quartile": float(high),
        "max": float(max(caps)),
        "outliers": fliers,
    }


def is_whisker(points, low, high):
    return len(points) == 2 and any(y in (low, high) for _, y in points)


def unit_of(label):
    """"m" of "Height (m)" or "Height [m]"."""
    for start, end in ("()", "[]"):
        if label.endswith(end) and start in label:
            return label[label.rindex(start) + 1 : -1] or None
    return None
