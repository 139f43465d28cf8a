"""GPU work of the stand-in engines: copies memory with a real kernel launch on a given stream."""

import ctypes
from ctypes import c_uint64, c_void_p

from infercanary.probe.gpu.cuda_driver import cuda_library
from infercanary.probe.targets.controls.cuda import PTX

_library = cuda_library()
assert _library is not None, "the stand-ins need a libcuda.so.1"
library = _library


def check(code):
    if code:
        raise RuntimeError(f"CUDA failure {code}")


def held(what):
    """Return the number of live objects of a kind, such as pushed contexts or streams."""
    return library.fake_cuda_count(what.encode())


class Copy:
    def __init__(self):
        self._module, self._kernel = c_void_p(), c_void_p()
        check(library.cuModuleLoadData(ctypes.byref(self._module), PTX.encode()))
        check(library.cuModuleGetFunction(ctypes.byref(self._kernel), self._module, b"copy"))

    def enqueue(self, stream, target, source, size):
        blocks, rest = divmod(size, 4096)
        assert blocks
        assert not rest
        arguments = c_uint64(target), c_uint64(source)
        pointers = (c_void_p * 2)(*map(ctypes.addressof, arguments))
        shape = (blocks, 1, 1, 256, 1, 1, 0)
        check(library.cuLaunchKernel(self._kernel, *shape, c_void_p(stream), pointers, None))

    def free(self):
        check(library.cuModuleUnload(self._module))
