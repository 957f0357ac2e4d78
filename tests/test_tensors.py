"""Every tensor and array goes to plain parts and comes back the same."""

import subprocess
import sys
import threading
import warnings

import ml_dtypes
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from faststeal._core import FormatError
from faststeal.tensors import PLAIN_DTYPES, is_plain
from faststeal.tree import Opaque, StoredDict, flatten, unflatten

SHELLS = [
    getattr(torch, name)
    for name in (
        *(f"int{n}" for n in range(1, 8)),
        *(f"uint{n}" for n in range(1, 8)),
        *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"),
    )
]
ORDINARY = [
    *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32),
    *(torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
]
FLOAT8 = sorted(PLAIN_DTYPES.difference(ORDINARY), key=str)
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]


@pytest.fixture(autouse=True)
def experimental():
    """What this file makes is experimental to torch, which says so once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(ComplexHalf|Sparse|The PyTorch API of nested)")
        warnings.filterwarnings("ignore", "torch.quantize_per")
        yield


def stored(obj, careful=True):
    """Take an object through the trees, as if its tensors had been in a file."""
    flat = flatten(obj, careful=careful)
    for tensor in flat.tensors:
        assert is_plain(tensor), tensor.dtype
    copies = [
        torch.empty_strided(
            t.shape, torch.empty(t.shape, device="meta").stride(), dtype=torch.uint8
        )
        .copy_(t.detach().view(torch.uint8))
        .view(t.dtype)
        if t.element_size() == 1
        else t.detach().clone(memory_format=torch.contiguous_format)
        for t in flat.tensors
    ]
    assert len(set(flat.paths)) == len(flat.paths) == len(flat.tensors)
    assert flat.leaves is None or len(flat.leaves) == len(flat.tensors)
    return unflatten(flat.tree, copies)


def raw(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def same(a, b):
    return type(b) is torch.Tensor and (a.dtype, a.shape) == (b.dtype, b.shape) and raw(a) == raw(b)


def some(dtype, *shape):
    torch.manual_seed(0)
    count = 1
    for size in shape:
        count *= size
    if dtype is torch.bool:
        return torch.arange(count).reshape(shape) % 3 == 0
    data = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8)
    return data.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4), (1, 1)])
@pytest.mark.parametrize("dtype", [*ORDINARY, *FLOAT8, *SHELLS, *COMPLEX], ids=str)
def test_every_dtype_comes_back_bit_for_bit(dtype, shape):
    tensor = some(dtype, *shape)
    assert same(tensor, stored(tensor))


@pytest.mark.parametrize("dtype", [*ORDINARY, *FLOAT8], ids=str)
def test_ordinary_dtypes_are_plain_and_handed_over_themselves(dtype):
    tensor = some(dtype, 4, 6)
    assert is_plain(tensor)
    for given in (tensor, tensor.t(), tensor[1:, ::2], tensor[:1].expand(3, 6)):
        for careful in (False, True):
            [kept] = flatten(given, careful=careful).tensors
            assert kept is given


@pytest.mark.parametrize("dtype", [*SHELLS, *COMPLEX], ids=str)
def test_strided_views_of_the_others(dtype):
    tensor = some(dtype, 4, 6)
    view = tensor.t()[1:, 1:]
    if dtype in SHELLS:
        expected = some(torch.uint8 if dtype.itemsize == 1 else torch.int16, 4, 6).t()[1:, 1:]
        assert raw(stored(view)) == raw(expected)
    else:
        assert raw(torch.view_as_real(stored(view))) == raw(torch.view_as_real(view))


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_lazy_conjugation_and_negation_are_carried_out(dtype):
    parts = {torch.complex32: torch.float16, torch.complex64: torch.float32}
    base = torch.tensor([[1.0, 2.0], [-3.0, 4.0]], dtype=parts.get(dtype, torch.float64))
    tensor = torch.view_as_complex(base)
    expect = [[1.0, -2.0], [-3.0, -4.0]]
    assert torch.view_as_real(stored(tensor.conj())).tolist() == expect
    assert torch.view_as_real(stored(tensor._neg_view())).tolist() == (-base).tolist()
    both = tensor.conj()._neg_view()
    assert both.is_conj()
    assert both.is_neg()
    assert torch.view_as_real(stored(both)).tolist() == [[-1.0, 2.0], [3.0, 4.0]]
    assert base.tolist() == [[1.0, 2.0], [-3.0, 4.0]]
    real = tensor.conj().imag
    assert real.is_neg()
    assert not is_plain(real)
    assert stored(real).tolist() == [-2.0, -4.0]


def test_quantized():
    x = torch.tensor([[-1.0, 0.0, 2.0], [0.5, 1.0, 3.0]])
    scales, zeros = torch.tensor([0.1, 0.2]), torch.tensor([3, 4])
    for dtype in (torch.quint8, torch.qint8, torch.qint32):
        whole = torch.quantize_per_tensor(x, 0.1, 3, dtype)
        back = stored(whole)
        assert back.dtype is dtype
        assert (back.q_scale(), back.q_zero_point()) == (whole.q_scale(), 3)
        assert torch.equal(back.int_repr(), whole.int_repr())
    by_channel = torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8)
    back = stored({"a": by_channel})["a"]
    assert back.qscheme() == by_channel.qscheme()
    assert back.q_per_channel_axis() == 0
    assert torch.equal(back.q_per_channel_scales(), by_channel.q_per_channel_scales())
    assert torch.equal(back.dequantize(), by_channel.dequantize())
    for dtype in (torch.quint8, torch.quint4x2, torch.quint2x4):
        floats = torch.quantize_per_channel(x, scales, torch.tensor([1.0, 2.0]), 0, dtype)
        back = stored(floats)
        assert (back.dtype, back.shape) == (dtype, floats.shape)
        assert torch.equal(back.dequantize(), floats.dequantize())
    packed = torch._empty_affine_quantized((3, 5), scale=0.5, zero_point=1, dtype=torch.quint4x2)
    assert torch.equal(stored(packed).dequantize(), packed.dequantize())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_sparse(dtype):
    dense = torch.tensor([[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 0, 4], [0, 5, 6, 0]]).to(dtype)
    for layout, block in (
        (torch.sparse_coo, None),
        (torch.sparse_csr, None),
        (torch.sparse_csc, None),
        (torch.sparse_bsr, (2, 2)),
        (torch.sparse_bsc, (2, 2)),
    ):
        sparse = dense.to_sparse(layout=layout, blocksize=block)
        back = stored(sparse)
        assert (back.layout, back.dtype, back.shape) == (layout, dtype, dense.shape)
        assert torch.equal(back.to_dense(), dense)


def test_sparse_uncoalesced_hybrid_and_empty():
    indices = torch.tensor([[0, 1, 1], [2, 0, 0]])
    twice = torch.sparse_coo_tensor(indices, torch.ones(3, 2), (2, 3, 2), check_invariants=True)
    back = stored([twice])[0]
    assert not back.is_coalesced()
    assert torch.equal(back._values(), twice._values())
    assert stored(twice.coalesce()).is_coalesced()
    empty = torch.sparse_coo_tensor(size=(2, 3), check_invariants=True)
    assert torch.equal(stored(empty).to_dense(), torch.zeros(2, 3))
    grad = twice.detach().requires_grad_()
    flat = flatten(grad, careful=True)
    assert sorted(flat.paths) == ["indices", "values"]
    assert all('"requires_grad":true' in leaf for leaf in flat.leaves)
    assert not any(t.requires_grad for t in flat.tensors)


def test_nested():
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    nested = torch.nested.nested_tensor(parts)
    back = stored(nested)
    assert back.layout is torch.strided
    assert all(torch.equal(a, b) for a, b in zip(back.unbind(), parts, strict=True))
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    flat = flatten((jagged,))
    assert flat.paths == ["0.values", "0.offsets"]
    back = stored(jagged, careful=False)
    assert back.layout is torch.jagged
    assert all(torch.equal(a, b) for a, b in zip(back.unbind(), parts, strict=True))
    assert back._maybe_max_seqlen == jagged._maybe_max_seqlen
    narrow = torch.nested.narrow(
        torch.randn(2, 5, 3), 1, torch.tensor([0, 1]), torch.tensor([2, 3]), layout=torch.jagged
    )
    back = stored(narrow)
    assert all(torch.equal(a, b) for a, b in zip(back.unbind(), narrow.unbind(), strict=True))


def test_hostile_offsets_are_refused():
    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    tree, _, [values, offsets], *_ = flatten(jagged)
    for bad in ([0, 2, 7], [0, 9, 6], [-1, 2, 6]):
        with pytest.raises(FormatError, match="offsets"):
            unflatten(tree, [values, torch.tensor(bad)])
    assert unflatten(tree, [values, offsets]).is_nested


def test_hostile_indices_are_refused():
    sparse = torch.eye(3).to_sparse()
    tree, _, tensors, *_ = flatten(sparse, careful=True)
    bad = [t + 100 if t.dtype == torch.int64 else t for t in tensors]
    with pytest.raises(FormatError, match="fit together"):
        unflatten(tree, bad)
    tree, _, tensors, *_ = flatten(torch.eye(3).to_sparse_csr(), careful=True)
    with pytest.raises(FormatError, match="fit together"):
        unflatten(tree, [t + 100 for t in tensors])


def test_mkldnn():
    tensor = torch.randn(2, 3)
    back = stored(tensor.to_mkldnn())
    assert back.layout is torch._mkldnn
    assert torch.equal(back.to_dense(), tensor)


def test_meta_and_fake_are_described():
    meta = torch.empty(2, 3, dtype=torch.bfloat16, device="meta").t()
    back = stored(meta)
    assert (back.device.type, back.shape, back.stride(), back.dtype) == (
        *("meta", (3, 2), (1, 3)),
        torch.bfloat16,
    )
    with FakeTensorMode() as mode:
        fake = torch.ones(4, 5)
        assert stored(fake).shape == (4, 5)
        real = flatten({"a": fake, "b": 1})
    assert '"device":"cpu"' in real.tree
    assert real.tensors == []
    assert stored(mode.from_tensor(torch.ones(2))).device.type == "meta"


def test_functorch_wrapped():
    seen = []

    def f(x):
        seen.append(flatten([x], careful=True))
        return (x * x).sum()

    torch.func.grad(f)(torch.ones(3))
    torch.vmap(f)(torch.arange(6.0).reshape(2, 3))
    grad, batched = seen
    assert [t.tolist() for t in unflatten(grad.tree, grad.tensors)] == [[1, 1, 1]]
    [parts] = unflatten(batched.tree, batched.tensors)
    assert type(parts) is StoredDict
    assert parts["value"].shape == (2, 3)
    assert parts["dim"] == 0
    functional = torch._to_functional_tensor(torch.ones(3))
    assert stored(functional).tolist() == [1, 1, 1]


def test_zero_tensor_and_freed_memory():
    assert stored(torch._efficientzerotensor(3)).tolist() == [0, 0, 0]
    freed = torch.ones(8)
    freed.untyped_storage().resize_(0)
    flat = flatten([freed, 1], careful=True)
    assert len(flat.notes) == 1
    assert isinstance(unflatten(flat.tree, flat.tensors)[0], Opaque)


class Tagged(torch.Tensor):
    """Data of its own, and an attribute."""


class Hidden(torch.Tensor):
    """A wrapper that does not tell its parts."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was called")


class Watched(torch.Tensor):
    """Data of its own; every operation is an error."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was called")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was called")


def test_subclasses():
    with torch._C.DisableTorchFunction():
        tensor = torch.ones(3).as_subclass(Tagged)
    tensor.tag = ["x", torch.zeros(2)]
    for careful in (False, True):
        back = stored([tensor], careful)[0]
        assert type(back) is Tagged
        assert back.tag[0] == "x"
        assert back.tag[1].tolist() == [0, 0]
    flat = flatten(tensor)
    assert flat.paths == ["", "tag.1"]
    gone = flat.tree.replace("Tagged", "Gone")
    assert type(unflatten(gone, flat.tensors)) is torch.Tensor
    watched = torch.ones(3).as_subclass(Watched)
    flat = flatten(watched)
    assert type(flat.tensors[0]) is torch.Tensor
    assert flat.tensors[0].tolist() == [1, 1, 1]


def test_wrapper_subclasses():
    two = TwoTensor(torch.ones(3), torch.zeros(3))
    flat = flatten({"w": two})
    assert flat.paths == ["w.a", "w.b"]
    assert all(is_plain(t) for t in flat.tensors)
    back = unflatten(flat.tree, flat.tensors)["w"]
    assert type(back) is TwoTensor
    assert back.a.tolist() == [1, 1, 1]
    gone = unflatten(flat.tree.replace("TwoTensor", "Gone"), flat.tensors)["w"]
    assert type(gone) is StoredDict
    assert gone.class_name == "torch.testing._internal.two_tensor:Gone"
    assert gone["b"].tolist() == [0, 0, 0]
    flat = flatten([Hidden(torch.ones(3)), 1])
    assert len(flat.notes) == 1
    assert "float32[3]" in unflatten(flat.tree, flat.tensors)[0].text


def test_parameters_and_buffers_come_back_as_plain_tensors():
    parameter = torch.nn.Parameter(torch.ones(3))
    buffer = torch.nn.Buffer(torch.ones(3))
    for careful in (False, True):
        flat = flatten([parameter, buffer], careful=careful)
        assert flat.tensors[0] is parameter
        assert flat.leaves is None
    lazy = torch.nn.LazyLinear(3).weight
    assert type(stored([lazy])[0]) is torch.Tensor


def test_no_graph_is_recorded_and_none_kept():
    leaf = torch.ones(3, dtype=torch.complex64, requires_grad=True)
    made = leaf * 2
    flat = flatten([made, made.conj(), TwoTensor(made.abs(), made.abs())], careful=True)
    assert all(not t.requires_grad and t.grad_fn is None for t in flat.tensors[:2])
    assert '"requires_grad":true' in flat.leaves[0]
    assert made.grad_fn is not None
    version = made._version
    made.abs().sum().backward()
    assert leaf.grad is not None
    assert made._version == version


def test_inference_tensors():
    with torch.inference_mode():
        tensor = torch.ones(3, dtype=torch.complex64)
        plain = torch.ones(2)
        assert stored(tensor).tolist() == [1, 1, 1]
    assert stored(tensor).tolist() == [1, 1, 1]
    assert stored(plain).tolist() == [1, 1]


def test_the_users_modes_see_nothing():
    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    tensors = [torch.ones(3, dtype=torch.complex64).conj(), torch.eye(3).to_sparse(), torch.ones(2)]
    arrays = [np.ones(3), np.float32(3)]
    with Functions(), Dispatch():
        seen.clear()
        flatten([tensors, arrays], careful=True)
        flatten([tensors[2], arrays])
    assert seen == []


def test_the_fast_form_does_nothing_with_tensors():
    class Nothing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            raise AssertionError(f"{func} was called")

    tensors = [torch.ones(3, dtype=torch.complex64).conj(), torch.eye(3).to_sparse()]
    with Nothing():
        kept = flatten(tensors).tensors
    assert all(a is b for a, b in zip(kept, tensors, strict=True))


def test_other_threads_are_not_disturbed():
    errors = []

    def work():
        try:
            for _ in range(50):
                assert stored(torch.ones(3, dtype=torch.complex64)).dtype is torch.complex64
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", ">f4", ">i2", "longdouble"),
    *("<U3", "S4", "<M8[ns]", "<m8[s]"),
)
ML_DTYPES = [
    cls for cls in vars(ml_dtypes).values() if isinstance(cls, type) and issubclass(cls, np.generic)
]


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (0, 2)])
@pytest.mark.parametrize("dtype", [*map(np.dtype, DTYPES), *map(np.dtype, ML_DTYPES)], ids=str)
def test_arrays_of_every_dtype(dtype, shape):
    array = np.zeros(shape, dtype)
    if array.nbytes:
        array[...] = np.arange(array.size).reshape(shape).astype(dtype)
    back = stored(array)
    assert type(back) is np.ndarray
    assert (back.dtype, back.dtype.str, back.shape) == (dtype, dtype.str, shape)
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable


@pytest.mark.parametrize("dtype", [*map(np.dtype, DTYPES), *map(np.dtype, ML_DTYPES)], ids=str)
def test_scalars_of_every_dtype(dtype):
    scalar = np.arange(3).astype(dtype)[1]
    back = stored([scalar])[0]
    assert type(back) is type(scalar)
    assert back.tobytes() == scalar.tobytes()
    assert back.dtype == scalar.dtype


def test_odd_arrays():
    array = np.arange(12.0).reshape(3, 4)
    fixed = array.copy()
    fixed.flags.writeable = False
    for odd in (array.T, array[::-1], array[:, ::2], fixed, np.asfortranarray(array)):
        assert np.array_equal(stored(odd), odd)
    packed = np.zeros(3, dtype=[("a", "i1"), ("b", "<i4")])
    assert np.array_equal(stored(packed["b"]), packed["b"])
    assert isinstance(stored([packed])[0], Opaque)
    assert flatten([packed]).notes
    objects = np.empty((2, 1), object)
    objects[0, 0], objects[1, 0] = [1, torch.ones(2)], None
    back = stored(objects)
    assert back.shape == (2, 1)
    assert back[0, 0][1].tolist() == [1, 1]
    masked = np.ma.MaskedArray([1.0, 2.0], [True, False])
    back = stored(masked)
    assert isinstance(back, np.ma.MaskedArray)
    assert back.mask.tolist() == [True, False]
    nan = np.uint32(0x7FC01234).view(np.float32)
    assert stored(nan).view(np.uint32) == 0x7FC01234
    assert stored(np.str_("")) == ""
    assert stored(np.dtype(">i4")) == np.dtype(">i4")
    assert stored(np.float32) is np.float32


def test_an_array_shares_its_memory_with_its_tensor():
    array = np.arange(4.0)
    [tensor] = flatten(array).tensors
    array[0] = 9
    assert tensor[0] == 9
    back = unflatten(flatten(array).tree, [tensor])
    assert np.shares_memory(back, array)


HOSTILE = r"""
{"array":{"dtype":"O","data":{"tensor":0}}}
{"array":{"dtype":"<f8","data":{"tensor":0}}}
{"array":{"dtype":"f4,f4","data":{"tensor":0}}}
{"array":{"dtype":"nonsense","data":{"tensor":0}}}
{"array":{"dtype":"ml_dtypes:finfo","data":{"tensor":0}}}
{"byte_array":{"dtype":"<i4","shape":[1000000000000],"data":{"tensor":0}}}
{"byte_array":{"dtype":"<i4","shape":[-3],"data":{"tensor":0}}}
{"object_array":{"shape":[1000000000000,0,-1],"items":[]}}
{"object_array":{"shape":[2],"items":[1]}}
{"scalar":{"dtype":"<f4","bytes":"AAAA"}}
{"scalar":{"dtype":"<U1000000000","bytes":"AAAA"}}
{"scalar":{"dtype":"|O","bytes":"AAAAAAAAAAA="}}
{"scalar":{"dtype":"<f4","bytes":"?"}}
{"complex_tensor":{"parts":{"tensor":0}}}
{"complex_tensor":{"parts":3}}
{"complex_tensor":{}}
{"complex_tensor":{"parts":{"tensor":0},"more":1}}
{"complex_tensor":[]}
{"raw_tensor":{"dtype":"nn","shape":[3],"data":{"tensor":0}}}
{"raw_tensor":{"dtype":"int4","shape":[-5],"data":{"tensor":0}}}
{"raw_tensor":{"dtype":"int4","shape":["3"],"data":{"tensor":0}}}
{"meta":{"dtype":"float32","shape":[-1],"strides":[1],"device":"cpu"}}
{"meta":{"dtype":"float32","shape":[9223372036854775807,9],"strides":[1],"device":"cpu"}}
{"meta":{"dtype":"float32","shape":[true],"strides":[1],"device":"cpu"}}
{"nested":{"values":[1,2]}}
{"mkldnn":{"data":null}}
{"quantized":{"dtype":"quint4x2","shape":[400],"ints":{"tensor":0},"scale":1.0,"zero_point":0}}
{"quantized_channels":{"dtype":"qint8","shape":[3],"ints":{"tensor":0},"scales":{"tensor":0},"zero_points":{"tensor":0},"axis":7}}
{"parts":{"class":"a:b","names":["x"],"values":[]}}
""".strip().splitlines()


@pytest.mark.parametrize("tree", HOSTILE)
def test_hostile_parts(tree):
    with pytest.raises(FormatError, match="expected"):
        unflatten(tree, [torch.ones(3, dtype=torch.float32)])


DTENSOR = """
import os, torch, torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed import _functional_collectives as collectives
from faststeal.tree import flatten, unflatten
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
sharded = distribute_tensor(torch.arange(6.).reshape(2, 3), mesh, [Shard(0)])
flat = flatten([sharded])
assert flat.paths == ["0.local"], flat
[back] = unflatten(flat.tree, flat.tensors)
assert back["local"].tolist() == [[0, 1, 2], [3, 4, 5]]
assert "S" in back["placements"][0] and "tp" in back["mesh"] and back["shape"] == (2, 3)
waiting = collectives.all_reduce(torch.ones(2), "sum", mesh)
assert type(waiting).__name__ == "AsyncCollectiveTensor", type(waiting)
flat = flatten({"a": waiting})
assert flat.paths == ["a"] and flat.tensors[0].tolist() == [1, 1], flat
assert type(flat.tensors[0]) is torch.Tensor
dist.destroy_process_group()
"""


def test_distributed_tensors():
    done = subprocess.run(
        [sys.executable, "-c", DTENSOR], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_loading_warns_of_nothing_in_a_fresh_process():
    sparse = flatten(torch.eye(3).to_sparse_csr(), careful=True)
    nested = flatten(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), careful=True)
    quantized = flatten(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), careful=True)
    code = "import torch\nfrom faststeal.tree import unflatten\n"
    for flat in (sparse, nested, quantized):
        tensors = [f"torch.tensor({t.tolist()}, dtype={t.dtype})" for t in flat.tensors]
        code += f"unflatten({flat.tree!r}, [{', '.join(tensors)}])\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
