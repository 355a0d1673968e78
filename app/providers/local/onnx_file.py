"""The parts of the ONNX format that a model of this process needs: read the tensors of a file, and write a graph.

A model file is a Protocol Buffers message; the numbers below are those of its fields in `onnx.proto`. The package
`onnx` does the same and much more, and is as large as the model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Tensor: TypeAlias = NDArray[Any]

FUSED: Final = "com.microsoft"
"""The domain of the operators that only ONNX Runtime has."""

_IR_VERSION: Final = 8
_OPERATORS: Final[Mapping[str, int]] = {"": 17, FUSED: 1}
_FLOAT, _INT64 = 1, 7
_DTYPES: Final[Mapping[int, type[np.generic]]] = {_FLOAT: np.float32, 2: np.uint8, 3: np.int8, _INT64: np.int64}
_CODES: Final = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
_EXTERNAL: Final = 1

_LAST_SHIFT: Final = 63
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _FLOAT_DATA, _INT32_DATA, _NAME, _RAW_DATA = 1, 2, 4, 5, 8, 9


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file that is mapped to memory: its path, its bytes, and its stored tensors by name, which are not read.

    A few small tensors are stored in another form, and are copies.
    """

    path: Path
    content: Tensor
    tensors: Mapping[str, Tensor]

    def offset_of(self, name: str) -> int:
        """Return where the bytes of a tensor are in the file. Raises ValueError for a copy."""
        offset = self.tensors[name].ctypes.data - self.content.ctypes.data
        if not 0 <= offset < len(self.content):
            raise ValueError(f"the tensor {name} is stored in another form")
        return offset


def read_model_file(path: Path) -> ModelFile:
    """Map a model file to memory. Raises ValueError, KeyError or IndexError for a file of another form."""
    content = np.memmap(path, np.uint8, "r")
    found: dict[str, Tensor] = {}
    for number, graph in _fields(content):
        if number == _MODEL_GRAPH and isinstance(graph, np.ndarray):
            for part, tensor in _fields(graph):
                if part == _GRAPH_INITIALIZER and isinstance(tensor, np.ndarray):
                    name, value = _read_tensor(tensor)
                    found[name] = value
    return ModelFile(path, content, found)


def _read_tensor(message: Tensor) -> tuple[str, Tensor]:
    dims: list[int] = []
    name, code = "", 0
    data: Tensor = np.empty(0, np.uint8)
    for number, value in _fields(message):
        if isinstance(value, int):
            dims += [value] if number == _DIMS else []
            code = value if number == _DATA_TYPE else code
        elif number == _NAME:
            name = value.tobytes().decode()
        elif number in {_FLOAT_DATA, _RAW_DATA}:
            data = value.view(_DTYPES[code])
        elif number == _INT32_DATA:
            data = np.array(_read_varints(value), _DTYPES[code])
    return name, data.reshape(dims)


def _fields(message: Tensor) -> Iterator[tuple[int, int | Tensor]]:
    """Yield the fields of a message: the number of each, and its integer or its bytes."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, kind = key >> 3, key & 7
        if not number:
            raise ValueError("this is not a model file: a field in it has no number")
        if kind == _VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        length, at = (_FIXED[kind], at) if kind in _FIXED else _read_varint(message, at)
        if kind not in {*_FIXED, _BYTES} or at + length > len(message):
            raise ValueError("this is not a model file, or only a part of one")
        yield number, message[at : at + length]
        at += length


def _read_varints(packed: Tensor) -> list[int]:
    if (packed < 0x80).all():  # noqa: PLR2004 - each of one byte, as zeros are
        return packed.tolist()
    found: list[int] = []
    at = 0
    while at < len(packed):
        value, at = _read_varint(packed, at)
        found.append(value)
    return found


def _read_varint(message: Tensor, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = int(message[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the highest bit says that more bytes follow
            return value, at
        shift += 7
        if shift > _LAST_SHIFT:
            raise ValueError("this is not a model file: a number in it is too long")


@dataclass(slots=True)
class Graph:
    """A graph to be written: nodes in the order in which they run, and the tensors that they read.

    `stored`: names of tensors that stay in the model file `file`, and are read from there.
    """

    file: ModelFile
    nodes: list[bytes] = field(default_factory=list[bytes])
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    stored: list[str] = field(default_factory=list[str])

    def add(
        self,
        operator: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        domain: str = "",
        **attributes: float | Sequence[int],
    ) -> str:
        """Add a node; return the name of its first output. Attributes are integers, numbers or lists of integers."""
        parts = [_bytes(1, name.encode()) for name in inputs] + [_bytes(2, name.encode()) for name in outputs]
        parts += [_bytes(4, operator.encode()), _bytes(7, domain.encode())]
        parts += [_bytes(5, _attribute(name, value)) for name, value in attributes.items()]
        self.nodes.append(b"".join(parts))
        return outputs[0]

    def weight(self, name: str) -> Tensor:
        """Return a tensor of the model file. Raises KeyError if it has none of this name."""
        return self.file.tensors[name]

    def constant(self, name: str, value: Tensor) -> str:
        """Add a tensor to the written model; return its name."""
        self.tensors[name] = value
        return name

    def copied(self, name: str) -> str:
        """Add a small tensor of the model file to the written model; return its name."""
        return self.constant(name, self.weight(name))

    def kept(self, name: str) -> str:
        """Let the written model read a large tensor from the model file; return its name."""
        self.stored.append(name)
        return name

    def to_bytes(self, *, inputs: str, outputs: str, dimensions: int) -> bytes:
        """Return the model: int64 `inputs` of any shape (rows, tokens), and `outputs` of shape (rows, dimensions)."""
        parts = [_bytes(1, node) for node in self.nodes]
        parts.append(_bytes(2, b"graph"))
        parts += [
            _bytes(5, _tensor(name, value) + _bytes(_RAW_DATA, value.tobytes())) for name, value in self.tensors.items()
        ]
        parts += [_bytes(5, self._reference(name)) for name in self.stored]
        parts.append(_bytes(11, _value_info(inputs, _INT64, ("rows", "tokens"))))
        parts.append(_bytes(12, _value_info(outputs, _FLOAT, ("rows", dimensions))))
        versions = [_bytes(8, _bytes(1, domain.encode()) + _integer(2, most)) for domain, most in _OPERATORS.items()]
        return b"".join([_integer(1, _IR_VERSION), _bytes(_MODEL_GRAPH, b"".join(parts)), *versions])

    def _reference(self, name: str) -> bytes:
        value, offset = self.weight(name), self.file.offset_of(name)
        place = {"location": self.file.path.name, "offset": str(offset), "length": str(value.nbytes)}
        entries = [_bytes(13, _bytes(1, key.encode()) + _bytes(2, one.encode())) for key, one in place.items()]
        return b"".join([_tensor(name, value), *entries, _integer(14, _EXTERNAL)])


def _attribute(name: str, value: float | Sequence[int]) -> bytes:
    if isinstance(value, int):
        return _bytes(1, name.encode()) + _integer(3, value) + _integer(20, 2)
    if isinstance(value, float):
        return _bytes(1, name.encode()) + _varint(2 << 3 | _FIXED32) + pack("<f", value) + _integer(20, 1)
    return _bytes(1, name.encode()) + b"".join(_integer(8, one) for one in value) + _integer(20, 7)


def _tensor(name: str, value: Tensor) -> bytes:
    dims = [_integer(_DIMS, length) for length in value.shape]
    return b"".join([*dims, _integer(_DATA_TYPE, _CODES[value.dtype]), _bytes(_NAME, name.encode())])


def _value_info(name: str, code: int, shape: Sequence[str | int]) -> bytes:
    dims = b"".join(
        _bytes(1, _integer(1, length) if isinstance(length, int) else _bytes(2, length.encode())) for length in shape
    )
    return _bytes(1, name.encode()) + _bytes(2, _bytes(1, _integer(1, code) + _bytes(2, dims)))


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _integer(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    value %= 1 << 64  # a negative number has ten bytes
    parts = bytearray()
    while value >= 0x80:  # noqa: PLR2004 - seven bits a byte
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
