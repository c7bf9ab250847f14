"""Compiled reports: equal to the formulas and to reports priced anew, monotone, stored, and strict."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import threading
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_program

import shardlang as sl
from shardlang.cost.builder import Builder, graph_of
from shardlang.cost.formula import Floor, Formula, Min, Sum
from shardlang.cost.graph import BLOCK, Graph
from shardlang.cost.numeric import Compiled
from shardlang.ir.size import Monomial

CHIPS = ("tpu_v5p", "tpu_v5e", "h100", "b200")
MODELS = ("book", "link", "link-one-way", "link-ring")
SEEDS = range(18)
POINTS = 5
LONG = 80
"""Formulas of more characters are left to numbers: sympy takes minutes to make their maxima."""

TOTALS = ("flops", "elementwise", "bytes", "t_math", "t_comms", "t_overlapped", "t_serial")
MEMORY = ("parameters", "gradients", "optimizer", "activations", "gathered_peak", "total")


class Drawn:
    """A random program with a chip, a model and sizes, from a seed."""

    def __init__(self, seed: int) -> None:
        """Draw everything but the sizes."""
        self.rng = random.Random(seed)
        self.text = random_program(self.rng)
        self.sets: dict[str, float] = {"T_hop": 1e-6, "T_dcn": 1e-5}
        if self.rng.random() < 0.3:  # the last axis
            self.text = self.text.replace("\n", " @dcn\n", 1)
            self.sets["W_dcn"] = 6e9
        self.chip = self.rng.choice(CHIPS)
        self.model = self.rng.choice(MODELS)
        if self.model == "book":
            del self.sets["T_hop"], self.sets["T_dcn"]
        elif self.chip == "h100":
            self.sets["in_network"] = self.rng.choice((0, 1))
        self.overlap = self.rng.choice((None, "axes"))
        self.plan = sl.lower(sl.parse(self.text), forward_only=self.rng.random() < 0.2)
        self.report = self.priced({})

    def priced(self, sizes):
        """Price the plan at other sizes."""
        sets = {**self.sets, **sizes}
        return sl.cost(self.plan, self.chip, model=self.model, overlap=self.overlap, sets=sets)

    def sizes(self):
        """Draw sizes of all axes and dims."""
        on_nodes = self.chip in ("h100", "b200")
        axes = (1, 1, 2, 4, 8, 16) if on_nodes else (1, 1, 2, 3, 5, 8, 12, 49)
        dims = (1, 7, 49, 64, 4096, 999_983)
        mesh = {name: self.rng.choice(axes) for name in self.report.mesh}
        return {**mesh, **{name: self.rng.choice(dims) for name in self.report.dims}}

    @property
    def outputs(self):
        """List every figure."""
        passes = [f"{p}.{key}" for p in ("forward", "backward", "total") for key in TOTALS]
        return [*passes, *(f"memory.{key}" for key in MEMORY)]


def quantity(report, output):
    """Find the figure that an output is."""
    part, key = output.split(".")
    return (report.memory if part == "memory" else report.totals[part]).quantity(key)


@pytest.mark.parametrize("seed", SEEDS)
def test_three_forms_agree(seed):
    """A compiled report, a report priced at the sizes, and its expressions say the same."""
    drawn = Drawn(seed)
    points = [drawn.sizes() for _ in range(POINTS)]
    names = list(points[0])
    function = drawn.report.compile(names, drawn.outputs)
    out = function(*(np.array([point[name] for point in points]) for name in names))
    short = [o for o in drawn.outputs if len(str(quantity(drawn.report, o))) < LONG]
    checked = drawn.rng.sample(short, 3)
    for i, point in enumerate(points):
        report = drawn.priced(point)
        for output in drawn.outputs:
            value = quantity(report, output).value
            assert float(out[output][i]) == pytest.approx(float(value), rel=1e-12, abs=0), output
        numbers = {
            sympy.Symbol(name, positive=True): sympy.Rational(v.numerator, v.denominator)
            for name, v in report.known.items()
        }
        for output in checked:
            found = quantity(report, output)
            assert found.expr.subs(numbers) == sympy.Rational(found.value)


@pytest.mark.parametrize("seed", SEEDS)
def test_costs_are_monotone(seed):
    """Larger dims and slower hardware never cost less; more devices never more work or memory each."""
    drawn = Drawn(1000 + seed)
    report = drawn.report
    figures = [s for s in ("C", "W_ici", "W_dcn", "T_hop", "T_dcn") if s in report.known]
    names = [*report.mesh, *report.dims, *figures]
    function = report.compile(names, drawn.outputs)
    rng = np.random.default_rng(seed)
    at = {
        **{name: 2.0 ** rng.integers(0, 5, 200) for name in report.mesh},
        **{name: 2.0 ** rng.integers(0, 20, 200) for name in report.dims},
        **{s: float(report.known[s]) * 2.0 ** rng.integers(-3, 4, 200) for s in figures},
    }
    base = function(**at)

    def rises(low, high):
        return bool(np.all(low <= high * (1 + 1e-12)))

    for name in names:
        moved = function(**{**at, name: at[name] * 2})
        for output in drawn.outputs:
            key = output.split(".")[1]
            if name in report.dims or name in ("T_hop", "T_dcn"):
                assert rises(base[output], moved[output]), (name, output)
            elif name in figures or key in ("flops", "elementwise", "t_math", *MEMORY[:4]):
                # over an axis of size 1 no copy is gathered, and kept
                many = at[name] > (1 if key == "activations" and name not in figures else 0)
                assert rises(moved[output][many], base[output][many]), (name, output)
    for which in ("forward", "backward", "total"):
        assert rises(base[f"{which}.t_comms"], base[f"{which}.t_overlapped"])
        assert rises(base[f"{which}.t_overlapped"], base[f"{which}.t_serial"])


def test_over_two_axes_of_which_one_is_one():
    """An AllGather over X and Y takes V/(2 W); where X is 1 it runs over Y alone, and takes V/W."""
    report = sl.cost(sl.lower(sl.parse("mesh X=2, Y=2\nA[B_XY] -> A[B]\n")), sets={"W_ici": 1e9})
    seconds, sent = report.compile(["B", "X", "Y"], ["t_comms", "bytes"])(
        1000, [1, 1, 2, 2], [1, 2, 1, 2]
    )

    assert list(sent) == [0, 2000, 2000, 2000]
    assert seconds == pytest.approx([0, 2e-6, 2e-6, 1e-6])


def test_parts_of_an_axis_share_its_links_when_axes_overlap():
    """Collectives over two parts of one axis take turns, also in the compiled report."""
    text = (
        "mesh X=8, X1=2 @part(X), X2=4 @part(X)\nA[B_{X1}, D] -> A[B, D]\nE[B_{X2}, D] -> E[B, D]\n"
    )
    report = sl.cost(sl.lower(sl.parse(text)), "tpu_v5p", overlap="axes")
    (compiled,) = report.compile(["B", "D"], "t_comms")(64, 4096)

    priced = sl.cost(report.plan, "tpu_v5p", overlap="axes", sets={"B": 64, "D": 4096})
    assert float(compiled) == pytest.approx(float(priced.total.quantity("t_comms").value))
    assert float(compiled) == pytest.approx(2 * 2 * 64 * 4096 / 180e9)


def test_on_a_slice_the_batch_varies():
    """A mesh laid on lines and rings: the compiled report is the report at each batch."""
    text = "mesh X=8, Y=4\nhardware tpu_v5e 8x4\nA[B_X, D_Y] -> A[B, D]\n"
    plan = sl.lower(sl.parse(text))
    function = sl.cost(plan, model="link").compile(["B", "D"], ["t_comms", "bytes"])
    out = function([64, 2**20], 1024)
    for i, batch in enumerate((64, 2**20)):
        report = sl.cost(plan, model="link", sets={"B": batch, "D": 1024})
        for output in ("t_comms", "bytes"):
            value = float(report.total.quantity(output).value)
            assert float(out[output][i]) == pytest.approx(value, rel=1e-12)


def test_compute_bound_is_an_output():
    """It says where T_math is larger than T_comms."""
    report = sl.cost(sl.lower(sl.load("examples/mlp.shd")), "tpu_v5e", model="link")
    out = report.compile(
        ["B", "X"], ["forward.compute_bound", "forward.t_math", "forward.t_comms"]
    )(np.geomspace(64, 2**22, 50)[:, None], [4, 16, 64])
    assert out[0].dtype == bool
    assert 0 < out[0].sum() < out[0].size
    assert (out[0] == (out[1] > out[2])).all()


# Arrays ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def layer():
    """Compile a layer that has maxima, floors and axes."""
    report = sl.cost(sl.lower(sl.load("examples/fsdp_tp.shd")), "tpu_v5p", model="link")
    return report.compile(["X", "Y", "B", "D", "F"])


def candidates(shape, seed=0):
    """Draw sizes for each argument of `layer`."""
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(1, 9, shape), rng.integers(1, 9, shape)]
    return [*arrays, *(rng.integers(1, 2**16, shape) for _ in range(3))]


@pytest.mark.parametrize(
    "shape", [(3 * BLOCK + 5,), (2, BLOCK + 1), (BLOCK, 3), (5, 0), (7, 1, 90)]
)
def test_blocks_give_what_single_candidates_give(layer, shape):
    """Large arrays are computed in blocks: each candidate is what it is alone."""
    arrays = candidates(shape)
    out = layer(*arrays)
    assert all(array.shape == shape for array in out)
    places = list(np.ndindex(*shape))
    for place in random.Random(0).sample(places, min(len(places), 40)):
        alone = layer(*(int(array[place]) for array in arrays))
        assert [float(array[place]) for array in out] == [float(array) for array in alone]


def test_axes_that_broadcast_give_what_dense_arrays_give(layer):
    """Of every order of the arguments' axes, views without copies and transposed arrays too."""
    rng = np.random.default_rng(1)
    sizes = (4, 3, 300, 2, 20)
    assert np.prod(sizes) > 4 * BLOCK
    for order in ([0, 1, 2, 3, 4], [2, 0, 4, 1, 3], [4, 3, 2, 1, 0]):
        shapes = [[1] * 5 for _ in sizes]
        for argument, axis in enumerate(order):
            shapes[argument][axis] = sizes[argument]
        arrays = [rng.integers(1, 9, shape) for shape in shapes]
        dense = [np.array(array) for array in np.broadcast_arrays(*arrays)]
        expected = layer(*dense)
        views = np.broadcast_arrays(*arrays)
        turned = [np.asfortranarray(array) for array in dense]
        for given_ in (arrays, views, turned):
            for one, other in zip(layer(*given_), expected, strict=True):
                assert one.shape == other.shape
                np.testing.assert_allclose(one, other, rtol=1e-14)


def test_calls_at_once_do_not_disturb_each_other(layer):
    """Threads that call one function get what they get one after another."""
    work = [candidates((2 * BLOCK,), seed) for seed in range(4)]
    expected = [layer(*arrays) for arrays in work]
    found = {}

    def call(i):
        found[i] = [layer(*work[i]) for _ in range(3)]

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, expected_ in enumerate(expected):
        for out in found[i]:
            assert all((one == other).all() for one, other in zip(out, expected_, strict=True))


def test_arguments_are_checked(layer):
    """What is no size is an error with the name, the value and the place."""
    ones = [np.ones(3)] * 5
    cases = [
        ([np.array([1, 0, 2]), *ones[1:]], "X has to be at least 1: it is 0 at 1"),
        ([1, 1, np.array([[4.0], [np.nan]]), 1, 1], "B has to be at least 1: it is nan at 1, 0"),
        ([1, 1, 1, -3, 1], "D has to be at least 1: it is -3"),
        ([1, 1, 1, 1, np.inf], "F has to be finite: it is inf"),
    ]
    for arrays, message in cases:
        with pytest.raises(ValueError, match=f"^{message}$"):
            layer(*arrays)
    for late in (0, 2 * BLOCK + 7):  # in another thread, too
        arrays = candidates((3 * BLOCK,))
        arrays[2][late] = 0
        with pytest.raises(ValueError, match=f"^B has to be at least 1: it is 0 at {late}$"):
            layer(*arrays)
    with pytest.raises(TypeError, match="B has to be numbers"):
        layer(1, 1, "many", 1, 1)
    with pytest.raises(TypeError, match="expected X, Y, B, D, F"):
        layer(1, 1, 1, 1, 1, B=1)
    assert layer(2, 2, 1e300, 1e300, 1e300)["t_math"] == np.inf
    assert layer(1, 2, 1e300, 1e300, 1e300)["t_comms"] == np.inf


def test_hardware_figures_and_derived_dims_are_checked():
    """A bandwidth of 0 is an error, a latency of 0 is none; a dim that follows has to be a size."""
    text = "mesh X=4\ndims D=64, F=D-8\nA[B_X, D] · W[D_X, F] -> C[B_X, F]\n"
    report = sl.cost(sl.lower(sl.parse(text)), "tpu_v5p", model="link", sets={"B": 64})
    function = report.compile(["W_ici", "T_hop"], "t_comms")
    assert function(1e11, 0)[0] > 0
    with pytest.raises(ValueError, match="W_ici has to be larger than 0: it is 0"):
        function(0, 0)
    with pytest.raises(ValueError, match="F has to be at least 1: it is 0, which follows from"):
        report.compile(["D"], "flops")([8, 16])
    with pytest.raises(ValueError, match="D is named twice"):
        report.compile(["D", "D"], "flops")


def test_outputs_cannot_be_written_to(layer):
    """Equal outputs may be one array, so that none can be changed."""
    for array in layer(*candidates((2 * BLOCK,))):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


# Stored ------------------------------------------------------------------------------------------

LOADER = """
import json, sys
from shardlang.cost.numeric import Compiled
function = Compiled.from_json(open(sys.argv[1], encoding="utf-8").read())
out = function(*([2.0 ** i for i in range(4)] for _ in function.names))
assert not any(name.startswith(("shardlang.frontend", "shardlang.planner")) for name in sys.modules)
print(json.dumps([list(map(float.hex, map(float, array))) for array in out]))
"""


def test_another_process_reads_it_without_the_program(layer, tmp_path):
    """JSON and pickle keep every bit of the results, errors and names."""
    path = tmp_path / "layer.json"
    path.write_text(layer.to_json(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(path)], check=True, capture_output=True, text=True
    )
    sizes = [[2.0**i for i in range(4)] for _ in layer.names]
    expected = layer(*sizes)
    assert json.loads(done.stdout) == [[float(x).hex() for x in array] for array in expected]
    for again in (pickle.loads(pickle.dumps(layer)), Compiled.from_dict(layer.to_dict())):
        assert again == layer
        with pytest.raises(ValueError, match="X has to be at least 1"):
            again(0, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "format"),
        ({"graph": {"nodes": 3, "outputs": []}}, "no expression graph"),
        ({"graph": {"nodes": [["system", [], "", []]], "outputs": []}}, "node 0"),
        ({"graph": {"nodes": [["+", [0, 1], "", []]], "outputs": []}}, "node 0"),
        ({"graph": {"nodes": [["floor", [True], "", []]], "outputs": []}}, "node 0"),
        ({"graph": {"nodes": [], "outputs": [3]}}, "an output is no node"),
        ({"outputs": ["bytes"]}, "names"),
        ({"names": []}, "names"),
    ],
)
def test_what_is_no_compiled_report_is_refused(layer, change, message):
    """Nothing that was not written by `to_json` is evaluated."""
    with pytest.raises(ValueError, match=message):
        Compiled.from_dict({**layer.to_dict(), **change})


# Graphs of any formulas ----------------------------------------------------------------------------

NAMES = "ABXY"
products = st.builds(
    lambda c, powers: Monomial(c, tuple(sorted(powers.items()))),
    st.fractions(min_value=Fraction(1, 8), max_value=8, max_denominator=8).filter(bool),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from([-2, -1, 1, 2, 3]), max_size=3),
)
atoms = st.one_of(
    products,
    st.builds(lambda m, n: m * Sum.of((m, n)), products, products),
    st.builds(lambda m, n: m * Floor.of(n), products, products),
    st.builds(lambda m, n, o: m / Min.of(n, o), products, products, products),
)
plain = st.lists(atoms, max_size=4).map(lambda terms: Formula.of(*terms))
formulas = st.recursive(
    plain,
    lambda inner: st.builds(
        lambda a, options: a + Formula.largest(options), plain, st.lists(inner, max_size=3)
    ),
    max_leaves=8,
)
points = st.fixed_dictionaries({n: st.integers(1, 64) for n in NAMES})


@settings(max_examples=40)
@given(st.lists(formulas, min_size=1, max_size=3), st.lists(points, min_size=1, max_size=4))
def test_graphs_compute_formulas(listed, drawn):
    """Any sums of products, maxima, floors and minima come to their exact values."""
    graph = Graph.from_dict(json.loads(json.dumps(graph_of(listed, {}).to_dict())))
    out = graph({name: np.array([point[name] for point in drawn]) for name in NAMES})
    for array, formula in zip(out, listed, strict=True):
        for value, point in zip(array, drawn, strict=True):
            exact = formula.value({name: Fraction(size) for name, size in point.items()})
            assert float(value) == pytest.approx(float(exact), rel=1e-12)


@settings(max_examples=40)
@given(
    st.lists(formulas, min_size=4, max_size=4),
    st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=4, max_size=4),
    st.booleans(),
    points,
)
def test_pieces_by_axes_of_size_one(pool, chosen, largest, point):
    """Where axes are 1 or not, a cost is what its formula in that case says."""
    cases = [frozenset(), frozenset("X"), frozenset("Y"), frozenset("XY")]
    join = Formula.largest if largest else Formula.sum
    pieces = {c: join(pool[i] for i in own) for c, own in zip(cases, chosen, strict=True)}
    builder = Builder()
    for name in NAMES:
        builder.input(name)
    graph = builder.graph([builder.piecewise(["X", "Y"], pieces)])
    for x, y in product((1, point["X"]), (1, point["Y"])):
        sizes = {**point, "X": x, "Y": y}
        case = frozenset(name for name in "XY" if sizes[name] > 1)
        exact = pieces[case].value({name: Fraction(size) for name, size in sizes.items()})
        assert float(graph(sizes)[0]) == pytest.approx(float(exact), rel=1e-10)


def test_floors_of_quotients_are_exact():
    """floor(49/X) at X = 49 is 1, though 49*(1/49) is less."""
    assert 49 * (1 / 49) < 1
    whole = Formula.of(Floor.of(Monomial.of("A") / Monomial.of("X")))
    values = np.arange(1.0, 2000.0)
    out = graph_of([whole], {})({"A": values[:, None] * 7, "X": values[None, :]})
    a = np.arange(1, 2000)
    assert (out[0] == (a[:, None] * 7) // a[None, :]).all()
