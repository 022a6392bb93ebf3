"""Running a learner's Triton kernel without a GPU: in Triton's interpreter, or in a few functions of PyTorch.

`launch` first plays the kernel with `twin`, which has the functions of `triton.language` that simple kernels need,
looks at every address, and stands in for Triton where it does not exist (macOS, Windows). Then Triton itself runs
it: its interpreter where there is no GPU, else its compiler.
"""

import dis
import importlib.util
import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .runner import prepare_triton

HAS_TRITON = importlib.util.find_spec("triton") is not None
FOREIGN = ("torch", "F", "np", "numpy")  # names of libraries that work in Triton's interpreter by chance, if at all
PROGRAM = {"id": (0,), "grid": (1,)}  # the program that `twin` plays
UNDEFINED = {"float": math.nan, "int": -1}  # what `twin` gives for a masked place of a load without `other`


class OutsideError(IndexError):
    """A kernel has read or written beside its tensors."""


class ShapeError(TypeError):
    """A variable has another shape after a round of a loop, which a GPU's compiler does not allow."""


class LanguageError(TypeError):
    """A kernel has called a function, or used an operator, that is none of `triton.language`."""


class Foreign:
    """What stands in for a library of Python's while a kernel is played: it has nothing for kernels."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        raise LanguageError(f"{self._name}.{name} is no part of Triton: of libraries only tl works in a kernel")


class Pointer:
    """Addresses of numbers of a tensor: where it begins, plus offsets, which may be a whole tensor of them."""

    def __init__(self, name: str, tensor: Tensor, offsets: Any = 0) -> None:
        self.name, self.tensor, self.offsets = name, tensor, offsets

    def __add__(self, more: Any) -> "Pointer":
        return Pointer(self.name, self.tensor, self.offsets + more)

    __radd__ = __add__

    def places(self, mask: Any, verb: str) -> tuple[Tensor, Tensor]:
        """Offsets, those that are masked as 0, and the mask, in one shape.

        Raises:
            OutsideError: one that is not masked is outside of the tensor.
        """
        offsets = torch.as_tensor(self.offsets).long()
        offsets, is_on = torch.broadcast_tensors(offsets, torch.as_tensor(True if mask is None else mask))
        wrong = offsets[is_on & ((offsets < 0) | (offsets >= self.tensor.numel()))]
        if wrong.numel():
            raise OutsideError(f"{self.name} has {self.tensor.numel()} numbers, and number {int(wrong[0])} is {verb}")
        return torch.where(is_on, offsets, 0), is_on


def _load(pointer: Pointer, mask: Any = None, other: Any = None, **_: Any) -> Tensor:
    places, is_on = pointer.places(mask, "read")
    loaded = pointer.tensor.flatten()[places]
    if other is None:
        other = UNDEFINED["float" if loaded.is_floating_point() else "int"]
    return torch.where(is_on, loaded, torch.as_tensor(other, dtype=loaded.dtype))


def _store(pointer: Pointer, value: Any, mask: Any = None, **_: Any) -> None:
    places, is_on = pointer.places(mask, "written")
    value = torch.as_tensor(value, dtype=pointer.tensor.dtype).broadcast_to(places.shape)
    pointer.tensor.view(-1)[places[is_on]] = value[is_on]


def _reduced(all_of: Callable[..., Tensor], along: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(x: Tensor, axis: int | None = None, keep_dims: bool = False) -> Tensor:
        return all_of(x) if axis is None else along(x, dim=axis, keepdim=keep_dims)

    return reduce


def _of_tensors(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *values: function(*(torch.as_tensor(value) for value in values))


def _shapes(frame: types.FrameType) -> dict[str, tuple[int, ...]]:
    """Shapes of the numbers and tensors among a function's variables."""
    values = {name: value for name, value in frame.f_locals.items() if isinstance(value, int | float | Tensor)}
    return {name: tuple(value.shape) if isinstance(value, Tensor) else () for name, value in values.items()}


def _range(*bounds: Any) -> Iterator[int]:
    """`range` for a kernel: what is there before the loop keeps its shape in it.

    Raises:
        ShapeError: a variable has another one now.
    """
    before = _shapes(sys._getframe(1))
    for number in range(*bounds):
        yield number
        after = _shapes(sys._getframe(1))
        for name in before.keys() & after.keys():
            if before[name] != after[name]:
                words = [f"the shape {list(shape)}" if shape else "a single number" for shape in
                         (before[name], after[name])]  # fmt: skip
                raise ShapeError(f"{name} is {words[0]} before the loop, and {words[1]} after a round of it")


TYPES = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "int32", "int64", "int1") if
         hasattr(torch, name)}  # fmt: skip
twin = types.SimpleNamespace(
    **TYPES,
    constexpr=int,
    load=_load,
    store=_store,
    program_id=lambda axis: PROGRAM["id"][axis] if axis < len(PROGRAM["id"]) else 0,
    num_programs=lambda axis: PROGRAM["grid"][axis] if axis < len(PROGRAM["grid"]) else 1,
    arange=torch.arange,
    zeros=lambda shape, dtype: torch.zeros(tuple(shape), dtype=dtype),
    full=lambda shape, value, dtype: torch.full(tuple(shape), value, dtype=dtype),
    cdiv=lambda x, y: -(-x // y),
    where=lambda condition, x, y: torch.where(torch.as_tensor(condition), torch.as_tensor(x), torch.as_tensor(y)),
    maximum=_of_tensors(torch.maximum),
    minimum=_of_tensors(torch.minimum),
    exp=_of_tensors(torch.exp),
    exp2=_of_tensors(torch.exp2),
    log=_of_tensors(torch.log),
    log2=_of_tensors(torch.log2),
    sum=_reduced(torch.sum, torch.sum),
    max=_reduced(torch.amax, torch.amax),
    min=_reduced(torch.amin, torch.amin),
    trans=lambda x: x.T,
    range=_range,
    static_range=range,
)


def _jit(function: Any = None, **_: Any) -> Any:
    return function or _jit


triton_twin = types.SimpleNamespace(jit=_jit, language=twin, cdiv=twin.cdiv)  # who decorates a kernel finds it there


def launch(
    kernel: Callable[..., None], grid: int, tensors: dict[str, Tensor], with_triton: bool = True, **others: Any
) -> str:
    """Run a kernel that has not been given to `triton.jit` yet, on tensors that it changes.

    Args:
        kernel: its parameters are the names of `tensors` and `others`; those in capitals are `tl.constexpr`.
        grid: how many programs run.
        with_triton: False asks Triton only if `twin` cannot play the kernel, which is quicker.

    Returns:
        where it ran: "twin", "interpreter" or "gpu".

    Raises:
        OutsideError: it reads or writes beside a tensor; then Triton does not run it.
        ShapeError: a variable changes its shape in a loop.
        LanguageError: it calls PyTorch or numpy, or has an `@`.
    """
    played = {name: tensor.clone() for name, tensor in tensors.items()}
    try:
        _play(kernel, grid, played, others)
        if not (HAS_TRITON and with_triton):
            return _keep(tensors, played, "twin")
    except (OutsideError, ShapeError, LanguageError, NameError):
        raise
    except Exception:  # what the twin cannot do, Triton may be able to do
        if not HAS_TRITON:
            raise
    played = {name: tensor.clone() for name, tensor in tensors.items()}
    return _keep(tensors, played, _run(kernel, grid, played, others))


def _keep(tensors: dict[str, Tensor], played: dict[str, Tensor], where: str) -> str:
    """Bring back what a kernel has written."""
    for name, tensor in tensors.items():
        if not torch.equal(tensor, played[name]):
            tensor.copy_(played[name])
    return where


def _play(kernel: Any, grid: int, tensors: dict[str, Tensor], others: dict[str, Any]) -> None:
    function = _with_language(kernel, twin)
    if any(step.opname == "BINARY_OP" and step.argrepr.startswith("@") for step in dis.get_instructions(function)):
        raise LanguageError("there is no @ in a kernel: multiply, and sum along an axis with tl.sum")
    names = function.__globals__
    kept = {name: names[name] for name in FOREIGN if name in names}
    names.update({name: Foreign(name) for name in kept}, range=_range)
    try:
        for number in range(grid):
            PROGRAM.update(id=(number,), grid=(grid,))
            function(**{name: Pointer(name, tensor) for name, tensor in tensors.items()}, **others)
    finally:
        del names["range"]
        names.update(kept)


def _run(kernel: Any, grid: int, tensors: dict[str, Tensor], others: dict[str, Any]) -> str:
    prepare_triton()
    import triton
    import triton.language as tl

    function = _with_language(kernel, tl)
    constants = {name: tl.constexpr for name in others if name.isupper()}
    function.__annotations__ = constants
    jitted, interprets = triton.jit(function), triton.knobs.runtime.interpret
    if not interprets:  # its compiler calls only what it has compiled
        helpers = {name: value for name, value in function.__globals__.items() if value is not function
                   and isinstance(value, types.FunctionType) and "tl" in value.__code__.co_names}  # fmt: skip
        function.__globals__.update({name: triton.jit(value) for name, value in helpers.items()})
    if interprets:  # it makes the function anew from its source, with other annotations
        jitted.rewrite().__annotations__ = constants
    moved = {name: tensor if interprets else tensor.cuda() for name, tensor in tensors.items()}
    jitted[(grid,)](**moved, **others)
    for name, tensor in moved.items():
        tensors[name] = tensor.cpu()
    return "interpreter" if interprets else "gpu"


def _with_language(kernel: Any, language: Any) -> Any:
    """The function itself, for which `tl` is another module from now on."""
    function = getattr(kernel, "fn", kernel)  # who has given it to triton.jit already
    function.__globals__["tl"] = language
    return function
