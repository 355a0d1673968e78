"""Finds what a process remembers between requests, by reading the source: maps, sets, queues, buffers and caches.

Counted is a name of a module, an attribute of a class or an object, or a variable that an inner function changes, where
its annotation or its value is a container; and every cached function. Not counted are other local variables, constants
that their module never changes, attributes of a read-only type that are assigned once, the fields of Pydantic models,
which are bodies, answers and settings, and the fields of frozen dataclasses that are given, which are values.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MAPS: Final = {
    "dict", "defaultdict", "OrderedDict", "Counter", "ChainMap", "MutableMapping", "UserDict", "LRUCache", "TTLCache",
    "WeakValueDictionary", "WeakKeyDictionary",
}  # fmt: skip
COLLECTIONS: Final = {
    "set", "list", "deque", "bytearray", "MutableSet", "MutableSequence", "WeakSet", "UserList", "Queue", "LifoQueue",
    "PriorityQueue", "SimpleQueue", "ContextVar",
}  # fmt: skip
READ_ONLY: Final = {"Mapping", "Sequence", "Set", "AbstractSet", "Collection", "tuple", "frozenset"}
CACHES: Final = {"lru_cache", "cache", "cached", "cachedmethod", "alru_cache"}
_CHANGES: Final = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem", "popleft",
    "put", "put_nowait", "remove", "set", "setdefault", "subtract", "update",
}  # fmt: skip
_MODELS: Final = {"BaseModel", "BaseSettings"}


class Why(StrEnum):
    """Why a place that remembers mixes no tenants."""

    TENANT = "its key names the tenant and the object"
    NO_TENANT_DATA = "it has no data of tenants"
    SECRET = "its key is made of a secret that names its tenant"
    NAMED = "each item names its tenant and object, and is given only to what follows both"
    OWN = "each item is of one call, and only that call gets its result"


@dataclass(frozen=True)
class State:
    """A place that remembers. `key`: the type of its keys, or of its elements; None where the source does not say."""

    name: str
    kind: str
    key: str | None


@dataclass
class Program:
    """The modules of a program, and what is known of their classes and type aliases."""

    modules: Mapping[str, ast.Module]
    bases: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    with_tenant: set[str] = field(default_factory=set[str])

    @classmethod
    def of(cls, sources: Mapping[str, str]) -> "Program":
        """Read the modules by their names."""
        program = cls({module: _as_imported(ast.parse(source)) for module, source in sources.items()})
        for module, tree in program.modules.items():
            program._learn(module, tree)
        return program

    def module(self, module: str, source: str) -> "Program":
        """One more module of this program, alone, with what is known of the others."""
        alone = Program.of({module: source})
        bases = {name: alone.bases.get(name, set()) | self.bases.get(name, set()) for name in self.bases | alone.bases}
        return Program(alone.modules, bases, self.with_tenant | alone.with_tenant)

    def _learn(self, module: str, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.bases.setdefault(node.name, set()).update(filter(None, map(name_of, node.bases)))
                fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                if "TenantId" in [name_of(one.annotation) for one in fields]:
                    self.with_tenant.add(_known_as(module, node.name))
        for node in tree.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Subscript):
                continue  # only an alias of a type
            if any(name_of(part) == "TenantId" for part in ast.walk(node.value)):
                self.with_tenant.update(_known_as(module, str(name_of(one))) for one in _targets(node))

    def states(self) -> list[State]:
        """Every place that remembers, in the order of the source."""
        return [state for module, tree in self.modules.items() for state in _Finder(self, module).find(tree)]

    def is_model(self, name: str, below: frozenset[str] = frozenset()) -> bool:
        """Whether a class is one of Pydantic's models."""
        below |= {name}
        return name in _MODELS or any(self.is_model(base, below) for base in self.bases.get(name, set()) - below)

    def names_tenant(self, state: State) -> bool:
        """Whether the key of a place names the tenant. Of a union every type must."""
        module = next(one for one in sorted(self.modules, reverse=True) if f"{state.name}.".startswith(f"{one}."))

        def names(key: ast.expr) -> bool:
            match key:
                case ast.BinOp(op=ast.BitOr()):
                    return names(key.left) and names(key.right)
                case ast.Subscript() | ast.Tuple():
                    return any(names(part) for part in ast.iter_child_nodes(key) if isinstance(part, ast.expr))
                case _:
                    name = str(name_of(key))
                    return name == "TenantId" or _known_as(module, name) in self.with_tenant

        return state.key is not None and names(ast.parse(state.key, mode="eval").body)


def problems(program: Program, *, reviewed: Mapping[str, tuple[Why, str]], short_lived: Mapping[str, str]) -> list[str]:
    """What is wrong about the places that remember: which are not reviewed, not safe, or reviewed and gone."""
    found: list[str] = []
    unused = {*reviewed, *short_lived}
    for state in program.states():
        owner = next((one for one in short_lived if state.name.startswith(f"{one}.")), None)
        unused.discard(state.name if owner is None else owner)
        if owner is not None:
            continue
        about = f"{state.name} ({state.kind} by {state.key})"
        if state.name not in reviewed:
            found.append(f"{about} is not reviewed: key it by tenant and object, and add it to the table")
        elif state.key is None:
            found.append(f"{about} does not say what its keys are: annotate it")
        elif reviewed[state.name][0] is Why.TENANT and not program.names_tenant(state):
            found.append(f"{about} is keyed by an id alone: another tenant may have the same")
    return found + [f"{name} is in the table, and not in the program" for name in sorted(unused)]


class _Finder:
    """Walks through one module."""

    def __init__(self, program: Program, module: str) -> None:
        self._program, self._module = program, module
        self._changed: set[str] = set()
        self._found: dict[str, State] = {}

    def find(self, tree: ast.Module) -> list[State]:
        self._changed = set(_changed_in(tree))
        self._visit(tree, [])
        return list(self._found.values())

    def _visit(self, node: ast.AST, scopes: Sequence[ast.AST]) -> None:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.ClassDef():
                    self._visit(child, [*scopes, child])
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._function(child, scopes)
                    self._visit(child, [*scopes, child])
                    continue
                case ast.Assign() | ast.AnnAssign():
                    self._assigned(child, scopes)
                case ast.Call() if name_of(child.func) in CACHES and child not in getattr(node, "decorator_list", ()):
                    self._add(_name(self._module, scopes, ast.unparse(child)), "cache", None)
                case _:
                    pass
            if not isinstance(child, ast.ClassDef):
                self._visit(child, scopes)

    def _function(self, function: ast.FunctionDef | ast.AsyncFunctionDef, scopes: Sequence[ast.AST]) -> None:
        if any(name_of(one) in CACHES for one in function.decorator_list):
            types = [ast.unparse(one) for name, one in _parameters(function).items() if name not in {"self", "cls"}]
            self._add(_name(self._module, scopes, function.name), "cache", f"tuple[{', '.join(types)}]")
        defaults = [*function.args.defaults, *function.args.kw_defaults]
        if kind := next(filter(None, map(_kind_of_value, defaults)), None):
            self._add(_name(self._module, scopes, f"{function.name}.defaults"), kind, None)

    def _assigned(self, node: ast.Assign | ast.AnnAssign, scopes: Sequence[ast.AST]) -> None:
        function = next((one for one in reversed(scopes) if isinstance(one, _FUNCTIONS)), None)
        for target, value in _pairs(node):
            annotation = _plain(node.annotation) if isinstance(node, ast.AnnAssign) else None
            if annotation is None and function is not None and isinstance(value, ast.Name):
                annotation = _plain(_parameters(function).get(value.id))
            kind = _kind_of_type(annotation) or _kind_of_value(value)
            if kind is None:
                continue
            key = _key_of(annotation) or _key_of(_type_of_value(value))
            match target:
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    if kind not in READ_ONLY or getattr(function, "name", "") != "__init__":
                        self._add(_name(self._module, _class_of(scopes), target.attr), kind, key)
                case ast.Attribute(value=ast.Name(id=name)) if (of := self._own_class(name, function)) is not None:
                    self._add(_name(self._module, [of], target.attr), kind, key)
                case ast.Attribute():
                    self._add(_name(self._module, scopes, ast.unparse(target)), kind, key)
                case ast.Name() if kind not in READ_ONLY and self._lives(node, target.id, scopes):
                    self._add(_name(self._module, scopes, target.id), kind, key)
                case _:
                    pass

    def _own_class(self, name: str, function: ast.FunctionDef | ast.AsyncFunctionDef | None) -> ast.ClassDef | None:
        """The class of this module that a parameter is of."""
        given = None if function is None else name_of(_plain(_parameters(function).get(name)))
        body = self._program.modules[self._module].body
        return next((one for one in body if isinstance(one, ast.ClassDef) and one.name == given), None)

    def _lives(self, node: ast.Assign | ast.AnnAssign, name: str, scopes: Sequence[ast.AST]) -> bool:
        """Whether a name with a container stays after the call that assigns it."""
        scope = scopes[-1] if scopes else None
        if isinstance(scope, _FUNCTIONS):
            if any(isinstance(one, ast.Global) and name in one.names for one in ast.walk(scope)):
                return True
            inner = [one for one in ast.walk(scope) if isinstance(one, (*_FUNCTIONS, ast.Lambda)) and one is not scope]
            return any(name in _changed_in(one) for one in inner)
        if (
            isinstance(scope, ast.ClassDef)
            and isinstance(node, ast.AnnAssign)
            and name_of(node.annotation) != "ClassVar"
        ):
            is_model = any(self._program.is_model(str(name_of(base))) for base in scope.bases)
            return not is_model and (_kind_of_value(node.value) is not None or not _is_frozen(scope))
        return not _is_filled(node.value) or name in self._changed

    def _add(self, name: str, kind: str, key: str | None) -> None:
        known = self._found.get(name)
        if known is None or (known.key is None and key is not None):
            self._found[name] = State(name, kind, key)


_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def _as_imported(tree: ast.Module) -> ast.Module:
    """The module with every imported name as it is called where it comes from. `Counter` of metrics is no container."""
    names = {
        alias.asname or alias.name: f"metrics.{alias.name}" if node.module == "prometheus_client" else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return tree


def _is_frozen(class_: ast.ClassDef) -> bool:
    decorated = "frozen=True" in [
        ast.unparse(one) for call in class_.decorator_list for one in getattr(call, "keywords", ())
    ]
    return decorated or "NamedTuple" in map(name_of, class_.bases)


def _name(module: str, scopes: Iterable[ast.AST], last: str) -> str:
    return ".".join([module, *(getattr(one, "name", "") for one in scopes), last])


def _known_as(module: str, name: str) -> str:
    """Private names are of their module."""
    return f"{module}.{name}" if name.startswith("_") else name


def name_of(node: ast.AST | None) -> str | None:
    """The last name of a type or of what is called: `deque` of `collections.deque[int]`."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.Subscript():
            return name_of(node.value)
        case ast.Call():
            return name_of(node.func)
        case _:
            return None


def _targets(node: ast.Assign | ast.AnnAssign) -> Sequence[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _pairs(node: ast.Assign | ast.AnnAssign) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What is assigned, and the value of each: of `a, b = c, d` two."""
    for target in _targets(node):
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _class_of(scopes: Sequence[ast.AST]) -> Sequence[ast.AST]:
    """The scopes of the class that a method, or a function in it, belongs to."""
    classes = [at for at, scope in enumerate(scopes) if isinstance(scope, ast.ClassDef)]
    return scopes[: classes[-1] + 1] if classes else scopes


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.expr]:
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return {one.arg: one.annotation or ast.Name("object") for one in given}


def _plain(annotation: ast.AST | None) -> ast.AST | None:
    """The container of a type that is quoted, final, optional or a variable of a class; else the type itself."""
    match annotation:
        case ast.Constant(value=str() as text):
            return _plain(ast.parse(text, mode="eval").body)
        case ast.Subscript() if name_of(annotation) in {"Final", "ClassVar", "Annotated", "Optional", "InitVar"}:
            inner = annotation.slice
            return _plain(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
        case ast.BinOp(op=ast.BitOr()):
            sides = [_plain(annotation.left), _plain(annotation.right)]
            return next((one for one in sides if _kind_of_type(one) is not None), None)
        case _:
            return annotation


def _kind_of_type(annotation: ast.AST | None, *, of: Collection[str] = MAPS | COLLECTIONS | READ_ONLY) -> str | None:
    name = name_of(annotation)
    return name if name is not None and name in of else None


def _kind_of_value(value: ast.AST | None) -> str | None:
    """The kind of container that an expression makes."""
    if isinstance(value, ast.Call):
        made = _type_of_value(value)
        return _kind_of_value(made.body) if isinstance(made, ast.Lambda) else _kind_of_type(made, of=MAPS | COLLECTIONS)
    for kind, displays in _DISPLAYS.items():
        if isinstance(value, displays):
            return kind
    parts: Sequence[ast.AST] = ()
    match value:
        case ast.IfExp():
            parts = (value.body, value.orelse)
        case ast.BoolOp():
            parts = value.values
        case ast.BinOp():
            parts = (value.left, value.right)
        case _:
            pass
    return next(filter(None, map(_kind_of_value, parts)), None)


_DISPLAYS: Final = {"dict": (ast.Dict, ast.DictComp), "list": (ast.List, ast.ListComp), "set": (ast.Set, ast.SetComp)}


def _type_of_value(value: ast.AST | None) -> ast.AST | None:
    """The type that a value is made of: `dict[K, V]` of `dict[K, V]()` and of `field(default_factory=dict[K, V])`."""
    if isinstance(value, ast.Call) and name_of(value.func) == "field":
        return next((one.value for one in value.keywords if one.arg == "default_factory"), None)
    return value.func if isinstance(value, ast.Call) else None


def _key_of(type_: ast.AST | None) -> str | None:
    """The type of the keys of a map, or of the elements of anything else."""
    if not isinstance(type_, ast.Subscript):
        return None
    is_map = name_of(type_) in {*MAPS, "Mapping"}
    return ast.unparse(type_.slice.elts[0] if is_map and isinstance(type_.slice, ast.Tuple) else type_.slice)


def _is_filled(value: ast.AST | None) -> bool:
    match value:
        case ast.Dict():
            return bool(value.keys)
        case ast.List() | ast.Set():
            return bool(value.elts)
        case ast.Call():
            return bool(value.args or value.keywords) and name_of(value.func) not in {"field", "defaultdict", "deque"}
        case _:
            return value is not None


def _changed_in(tree: ast.AST) -> Iterator[str]:
    """The names whose containers are changed somewhere in a tree."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(ctx=ast.Store() | ast.Del(), value=ast.Name() | ast.Attribute() as changed):
                yield str(name_of(changed))
            case ast.AugAssign(target=ast.Name() | ast.Attribute() as changed):
                yield str(name_of(changed))
            case ast.Call(func=ast.Attribute(attr=method, value=ast.Name() | ast.Attribute() as changed)):
                if method in _CHANGES:
                    yield str(name_of(changed))
            case _:
                pass
