"""The rooms of the house: which folder may import which, and that the host needs no torch."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FORGE = ROOT / "forge"

GROUND = {"errors", "records", "version"}
"""Modules without imports of their own; every room may use them."""

ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "origin": set(),
    "records": set(),
    "version": set(),
    # config: an experiment file
    "config": {"config.schema"},
    "config.schema": set(),
    "install": set(),
    "client": {"adapters", "process"},
    "process": set(),
    "process.server": {"process"},
    "exits": {"process"},
    # data and rollout: the problems and the loop
    "data": {"config.schema", "data.families", "data.sources"},
    "data.families": set(),
    "data.harvest": {
        "config.schema", "data", "data.build", "data.harvest.sources", "data.prompts",
        "data.sources",
    },
    "data.harvest.sources": {
        "data", "data.harvest", "data.harvest.sources.compositions",
        "data.harvest.sources.samples", "data.pairs", "data.sources",
    },
    "data.harvest.sources.compositions": {"data.harvest"},
    "data.harvest.sources.samples": {"data.harvest", "process"},
    "data.inductor": {"data.harvest"},
    "data.inductor.compiler": {"data.harvest", "data.inductor"},
    "data.pairs": {"config.schema", "data", "data.families", "data.prompts"},
    "data.build": {
        *("config.schema", "data", "data.pairs", "data.prompts", "data.sources"),
    },
    "data.prompts": {"config.schema", "data"},
    "data.sources": {"config.schema", "data", "data.pairs"},
    "rollout": {"data", "data.prompts", "rollout.rewards", "tools"},
    "tools": {"data"},
    "rollout.rewards": {"config.schema", "process", "process.server"},
    # serve: inference engines
    "serve": {"config.schema", "process", "process.server"},
    "serve.engine": {"process", "process.server", "serve"},
    "serve.hf": {"process", "serve", "serve.engine"},
    "serve.llama": {"process", "serve", "serve.engine"},
    "serve.vllm": {"process", "process.server", "serve", "serve.engine"},
    # evalpool: judges of kernels
    "evalpool": {"config.schema", "process", "process.server"},
    "evalpool.judge": {
        "config.schema", "process", "process.server", "evalpool",
        "evalpool.judge.sandbox", "evalpool.judge.children", "evalpool.judge.compiler",
        "evalpool.judge.trial", "evalpool.judge.trial.gpu", "evalpool.judge.harvest",
    },
    "evalpool.judge.channel": set(),
    "evalpool.judge.driver": set(),
    "evalpool.judge.sandbox": {"evalpool", "evalpool.judge.channel", "process"},
    "evalpool.judge.children": {
        "process", "evalpool.judge.channel", "evalpool.judge.sandbox", "evalpool.judge.capture",
        "evalpool.judge.compiler", "evalpool.judge.execute", "evalpool.judge.reference",
        "evalpool.judge.timing", "evalpool.judge.harvest", "evalpool.judge.driver",
        "evalpool.judge.numbers",
    },
    "evalpool.judge.harvest": {
        "evalpool.judge.channel", "evalpool.judge.children", "evalpool.judge.numbers",
        "evalpool.judge.reference", "data.harvest", "data.inductor.compiler",
    },
    "evalpool.judge.reference": {
        "evalpool.judge.channel", "evalpool.judge.numbers", "evalpool.judge.wide",
        "evalpool.judge.driver",
    },
    "evalpool.judge.trial": {
        "config.schema", "process", "evalpool", "evalpool.judge.channel", "evalpool.judge.sandbox",
        "evalpool.judge.children", "evalpool.judge.program",
        "evalpool.judge.compiler", "evalpool.judge.numbers",
        "evalpool.judge.capture", "evalpool.judge.ttir", "evalpool.judge.ttir.memory",
        "evalpool.judge.execute",
        "evalpool.judge.wide",
    },
    "evalpool.judge.trial.gpu": {
        "config.schema", "process", "evalpool", "evalpool.judge.channel", "evalpool.judge.driver",
        "evalpool.judge.children", "evalpool.judge.program",
        "evalpool.judge.compiler", "evalpool.judge.numbers",
        "evalpool.judge.execute", "evalpool.judge.timing", "evalpool.judge.trial",
        "evalpool.judge.wide",
    },
    "evalpool.judge.timing": {
        "config.schema", "evalpool", "evalpool.judge.channel", "evalpool.judge.children",
        "evalpool.judge.reference", "evalpool.judge.numbers", "evalpool.judge.trial",
    },
    "evalpool.judge.program": set(),
    "evalpool.judge.ttir": {
        "evalpool.judge.program", "evalpool.judge.ttir.memory",
    },
    "evalpool.judge.ttir.memory": {"evalpool.judge.ttir"},
    "evalpool.judge.capture": {
        "evalpool.judge.channel", "evalpool.judge.reference", "evalpool.judge.program",
        "evalpool.judge.numbers",
    },
    "evalpool.judge.compiler": {
        "process", "evalpool.judge.channel", "evalpool.judge.sandbox", "evalpool.judge.children",
        "evalpool.judge.program",
    },
    "evalpool.judge.execute": {
        "process", "evalpool.judge.channel", "evalpool.judge.program",
        "evalpool.judge.ttir",
        "evalpool.judge.ttir.memory", "evalpool.judge.compiler",
        "evalpool.judge.wide",
    },
    "evalpool.judge.execute.gpu": {
        "process", "evalpool.judge.channel", "evalpool.judge.sandbox", "evalpool.judge.program",
        "evalpool.judge.compiler", "evalpool.judge.execute", "evalpool.judge.driver",
    },
    "evalpool.judge.wide": {
        "evalpool.judge.channel", "evalpool.judge.numbers", "evalpool.judge.program",
        "evalpool.judge.ttir",
    },
    "evalpool.judge.numbers": {"evalpool.judge.channel"},
    # cluster: judges, engines and ranks of a trainer on other machines
    "cluster": {
        "config.schema", "origin", "process", "process.server", "evalpool", "serve",
        "train",
    },
    # train: the trainer
    "train": {"config.schema", "process"},
    "train.trainer": {
        "process", "train", "train.trainer.child", "train.trainer.model", "train.trainer.packed",
        "train.trainer.publish",
    },
    "train.trainer.packed": set(),
    "train.trainer.child": {"process", "train", "train.trainer.packed"},
    "train.trainer.model": {
        "process", "train", "train.trainer.child", "train.trainer.packed",
    },
    "train.trainer.publish": {"process", "train", "train.trainer.child"},
    # store: the run directory
    "store": {"store.schema"},
    "store.schema": set(),
    "store.write": {"store", "store.schema"},
    # views: answers for people
    "views": {"process", "store"},
    "views.report": {"store", "views"},
    # tui: the monitor
    "tui": {"store", "tui.frame", "tui.screens", "views"},
    "tui.frame": {"process", "store", "views"},
    "tui.widgets": {"process", "views"},
    "tui.screens": {"process", "store", "tui.frame", "tui.widgets", "views"},
}  # fmt: skip
"""The rooms that each room may import, besides GROUND and itself."""

PARTS = {
    "config", "config.schema", "process",
    "process.server", "cluster",
    "data", "data.pairs", "data.prompts", "data.build", "data.harvest",
    "data.harvest.sources", "data.sources", "rollout",
    "rollout.rewards",
    "serve", "evalpool", "train", "store", "store.write",
    "views", "views.report", "exits", "origin", "tools",
}  # fmt: skip
"""Rooms that the supervisor joins: every room that runs on the host."""

SUPERVISOR: dict[str, set[str]] = {
    "runner.plan": {"runner.weights"},
    "runner.live": set(),
    "runner.prepare": {"runner.plan", "runner.live", "runner.weights"},
    "runner.weights": set(),
    "runner.stages": {"runner.plan", "runner.live", "runner.prepare", "runner.weights"},
    "runner.outlets": {"runner.plan", "runner.live", "runner.weights"},
    "runner": {
        "runner.plan", "runner.live", "runner.prepare", "runner.weights",
        "runner.stages", "runner.outlets",
    },
    "commands": {
        "runner", "runner.outlets", "runner.plan", "runner.prepare", "runner.stages",
        "runner.weights", "adapters", "commands.doctor",
    },
    "commands.judge": {"adapters", "commands"},
    "adapters": {"client"},
    "adapters.http": {"adapters"},
    "adapters.openenv": {"adapters", "adapters.http", "runner.prepare"},
    "commands.doctor": {"runner", "runner.plan", "runner.weights"},
}  # fmt: skip
"""The rooms of the supervisor that each of its rooms may import, besides PARTS."""

ANYTHING = {"cli", "__init__", "__main__"}
"""The command line and the package's own names."""

EXCEPTIONS: dict[str, set[str]] = {
    # The reward's settings pass through a rollout on their way to rewards.
    "forge/rollout/play.py": {"config.schema"},
    # An engine renders a chat with the same template code as training.
    "forge/serve/engine/endpoints.py": {"data"},
    # A source with a fault of its own needs no judge.
    "forge/adapters/answering.py": {"evalpool.judge.channel", "evalpool.judge.trial"},
    # A stored program is read where it is printed; that takes neither torch nor a judge.
    "forge/commands/turn_view.py": {"evalpool.judge.program"},
    # Prompts state the tolerances that judges know.
    "forge/runner/prepare/prompt_facts.py": {"evalpool.judge.numbers"},
    # The doctor says what a machine must allow for the sandbox.
    "forge/commands/doctor/examine.py": {"evalpool.judge.sandbox"},
    # Its child processes try what a judge does.
    "forge/commands/doctor/probes.py": {
        "evalpool.judge.driver",
        "evalpool.judge.sandbox",
        "evalpool.judge.capture",
        "evalpool.judge.execute",
    },
}
"""Single files that may import more."""

OF_OTHERS = ("forge/adapters/verifiers.py",)
"""Files whose classes are subclasses of a package that forge does not depend on."""
HEAVY = ("torch", "triton", "transformers", "trl", "datasets", "peft", "vllm")
CHILD_FOLDERS = (
    "forge/data/inductor/compiler",
    "forge/commands/doctor/probes.py",
    "forge/data/harvest/sources/samples/child.py",
    "forge/evalpool/judge",
    "forge/serve/hf",
    "forge/serve/vllm",
    "forge/train/trainer",
)

DISTRIBUTIONS = {
    "llama_cpp": "llama_cpp_python",
    "pynvml": "nvidia_ml_py",
    "sympy": "torch",
    "pydantic_core": "pydantic",
    "annotated_types": "pydantic",
    "markupsafe": "jinja2",
}
"""Distribution by import name, if the names differ by more than a dash."""


def modules() -> list[Path]:
    return sorted([*FORGE.rglob("*.py"), *(ROOT / "tui").rglob("*.py")])


def folders() -> list[Path]:
    return sorted({path.parent for path in modules()})


def room_of(path: Path) -> str:
    """The dotted name of a module's room below forge; a file directly in forge is its own."""
    inside = path.relative_to(ROOT).with_suffix("").parts
    if inside[0] == "forge":
        inside = inside[1:]
    return ".".join(inside[:-1]) or inside[0]


def module_rooms() -> dict[str, str]:
    """The room of each dotted module name, packages included."""
    found = {}
    for path in modules():
        found[dotted_name(path)] = room_of(path)
    return found


def dotted_name(path: Path) -> str:
    """Name to import a module by: `forge/tui` is a link to `tui`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "forge" else ("forge", *parts)).removesuffix(".__init__")


MODULES = module_rooms()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imported_rooms(path: Path) -> set[str]:
    """Rooms that a module imports anywhere in it, names for type checkers included."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            full = [f"{module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else module for name in full]
        else:
            continue
        found |= {MODULES[name] for name in names if name in MODULES}
    return found - {"__init__"}


def allowed_rooms(room: str) -> set[str]:
    if room in SUPERVISOR:
        return SUPERVISOR[room] | PARTS | GROUND | {room}
    return ROOMS[room] | GROUND | {room}


def forbidden_rooms(path: Path) -> set[str]:
    """Rooms that a module imports and may not."""
    room = room_of(path)
    if room in ANYTHING:
        return set()
    extra = EXCEPTIONS.get(str(path.relative_to(ROOT)), set())
    return imported_rooms(path) - allowed_rooms(room) - extra


def test_imports_point_one_way():
    """One test for all modules: a test for each costs more time than its reading."""
    found = {str(path.relative_to(ROOT)): forbidden_rooms(path) for path in modules()}
    assert {path: rooms for path, rooms in found.items() if rooms} == {}


def test_the_table_names_exactly_the_rooms_that_exist():
    assert set(ROOMS) | set(SUPERVISOR) | ANYTHING == set(MODULES.values())


def test_only_the_command_line_imports_commands():
    importers = {room_of(path) for path in modules() if "commands" in imported_rooms(path)}
    outside = {room.partition(".")[0] for room in importers}
    assert outside <= {"commands", "cli", "__init__"}


def test_the_monitor_is_imported_from_forge_where_a_wheel_has_it():
    """A checkout also has it as `tui`, a name that an installed forge leaves to others."""
    assert (FORGE / "tui").resolve() == ROOT / "tui"
    sources = [*modules(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").glob("*.py")]
    wrong = [
        path for path in sources if re.search(r"^\s*(from|import) tui\b", path.read_text(), re.M)
    ]
    assert wrong == []


def test_a_class_name_occurs_once():
    """The judge's own classes aside: it is rebuilt in rooms of its own."""
    found = defaultdict(list)
    public = {FORGE / "adapters" / "verdict.py", FORGE / "client.py"}  # names that users read
    for path in sorted(FORGE.rglob("*.py")):
        if FORGE / "evalpool" / "judge" not in path.parents and path not in public:
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_a_module_that_starts_a_process_starts_it_last():
    """Names below the start do not exist yet."""
    starts = [
        (path, node is tree_of(path).body[-1])
        for path in modules()
        for node in tree_of(path).body
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
    ]
    assert len(starts) > 20
    assert [str(path) for path, is_last in starts if not is_last] == []


def test_every_room_says_what_happens_in_it():
    silent = [each for each in folders() if not ast.get_docstring(tree_of(each / "__init__.py"))]
    assert silent == []


def test_every_import_is_a_declared_dependency():
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = {line.lower().replace("-", "_") for line in tables["project"]["dependencies"]}
    extras = tables["project"]["optional-dependencies"]
    for extra in extras.keys() - {"dev"}:
        declared |= {line.lower().replace("-", "_") for line in extras[extra]}
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules()
        for name in imported_names(path)
        if not any(line.startswith(DISTRIBUTIONS.get(name, name)) for line in declared)
    }
    assert missing == set()


def imported_names(path: Path) -> set[str]:
    """Top-level names of the third-party modules that a file imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"forge"}


def test_the_host_imports_no_torch():
    names = [
        dotted_name(path)
        for path in modules()
        if not str(path.relative_to(ROOT)).startswith((*CHILD_FOLDERS, *OF_OTHERS))
        and path.name != "__main__.py"
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {HEAVY}: sys.modules[name] = None\n"
        f"for name in {names}: importlib.import_module(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=100, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
