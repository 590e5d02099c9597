"""What only an accelerator would show, seen on the CPU: reads on the host, and tensors made on the wrong device."""

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = {
    Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.nonzero, torch.nonzero,
    Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__array__,
}  # fmt: skip


class HostReads(TorchFunctionMode):
    """Counts what waits for the device."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += function in READS
        return function(*args, **(kwargs or {}))


aten = torch.ops.aten
WAITS = {
    aten._local_scalar_dense, aten.nonzero, aten.nonzero_static, aten.masked_select, aten.equal, aten.is_nonzero,
    aten._unique2, aten.unique_consecutive,
}  # fmt: skip
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._unsafe_index}


class HostTraffic(TorchDispatchMode):
    """Counts the same below torch's surface (a size that depends on values, too), and tensors that the host makes."""

    waits = made = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        packet = operation.overloadpacket
        chosen = [leaf for leaf in tree_leaves(args[1:2]) if isinstance(leaf, Tensor)] if packet in INDEXING else []
        self.waits += packet in WAITS or any(index.dtype == torch.bool for index in chosen)
        self.made += packet is aten.lift_fresh
        return operation(*args, **(kwargs or {}))


class OneDevice(TorchDispatchMode):
    """Fails on what would not run on an accelerator: torch lets meta tensors meet others where CUDA does not."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if "copy" not in operation.name():
            assert len({tensor.device for tensor in tensors if tensor.dim()}) <= 1, operation
        return operation(*args, **(kwargs or {}))


class MadeUpReads(TorchFunctionMode):
    """A meta tensor has no values: what is read on the host is made up."""

    def __init__(self, labels: int, rows: int):
        super().__init__()
        self.labels, self.rows = labels, rows

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        of = args[0] if args else None
        if not isinstance(of, Tensor) or of.device.type != "meta":
            return function(*args, **kwargs)
        if function is Tensor.nonzero:
            found = tuple(of.new_empty(self.labels, dtype=torch.long) for _ in of.shape)
            return found if kwargs.get("as_tuple") else torch.stack(found, dim=1)
        if function is Tensor.__getitem__ and isinstance(args[1], Tensor) and args[1].dtype == torch.bool:
            return of[: self.rows]
        if function is Tensor.__bool__:
            return False
        if function in READS:
            host = torch.ones(of.shape, dtype=of.dtype)
            host.view(-1)[:1] = 0  # so that a sequence goes on where others stop
            return host if function is Tensor.cpu else function(host, *args[1:], **kwargs)
        return function(*args, **kwargs)
