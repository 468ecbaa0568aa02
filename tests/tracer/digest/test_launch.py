"""What a launch needs to know of a compiled kernel."""

from hicache_dbg.tracer.digest.launch import _parameter_bits

_PTX = """
.version 8.7
.visible .entry long_tiles(
    .param .u64 long_tiles_param_0,
    .param .u32 long_tiles_param_1,
    .param .u64 .ptr .global .align 1 long_tiles_param_2
)
.reqntid 32
{
    .reg .pred %p<27>;
    ld.param.b64 %rd21, [long_tiles_param_0];
}
"""


def test_parameters_are_read_off_the_code() -> None:
    """The width of each parameter comes from the compiled entry, Triton's own pointers included."""
    assert _parameter_bits(_PTX) == ["64", "32", "64"]
