# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of conv share: cuda_src/conv/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, flag, i32, i64, u32
from ...facts import Divisor

AXES = 3  # spatial axes that kernels have; missing ones have an extent of 1, in front
THREADS = 256  # threads of a block, where no other number is declared below
BLOCKS = 2  # blocks of THREADS on a multiprocessor, for launch bounds

# ---- matrix products whose tiles are gathered, or copied by lines (positions of a channel) ----
COLUMNS = 128  # columns of a block's tile
PART_NBYTES = 64  # bytes of a row of a tile's operands that shared memory has at a time
WIDE_ROWS = 128  # rows of the widest tile; in 2-byte types and TF32 of lines alone
FEW_ROWS = 32  # rows of the smallest tile of floats, compiled along with that of twice as many
SIDE = 32  # channels of a block that sums an array (n, position, channel) over positions

# ---- depthwise convolutions: groups of one channel ----
STRIP = 4  # neighbouring positions along the last axis that a thread computes
NARROW_STRIP = 2  # of WIDE_TAPS x WIDE_TAPS taps with channels last, while it walks down rows
TAPS = 3  # taps along each of the last two axes that a block sums for the gradient of W
# Taps along each of these axes that a block sums for larger kernels, if stride and dilation along
# the last axis are 1 and elements have at most 4 bytes.
WIDE_TAPS = 5
# TAPS; or WIDE_TAPS, in compilations with depthwise kernels for larger kernels alone.
TAPS_AT_ONCE = Slot(TAPS)
LINE_VECTORS = 32  # vectors of channels that a block has, if channels are last
LINE_TAPS = 32  # most taps of a kernel whose weights such a block has in shared memory
# Neighbouring channels, if channels are last, of a thread that sums W's gradient over strips.
LINE_SUMS = 4
WALK_CHANNELS = 2  # those of a thread that walks down the rows of an image

# ---- staged products: tiles are copied by vectors from arrays (n, position, channel) ----
STAGED_THREADS = 128  # threads of a block whose warps multiply
STAGED_BLOCKS = 2  # such blocks on a multiprocessor
# Buffers in shared memory, each for a part of the sum: no more, as the L1 cache needs the rest.
STAGED_STAGES = 2
TALL_COLUMNS = 128  # columns of a tall tile, which has 2 * PANEL rows
FLAT_COLUMNS = 192  # columns of a flat tile, which has PANEL rows
SPLIT_COLUMNS = 128  # columns of a flat tile of floats in three TF32 products, with more registers

# ---- staged products in 2-byte types and TF32 on 9.0, whose warpgroups multiply ----
TALL_GROUPS_THREADS = 256  # threads of a block with a tall tile
TALL_GROUPS_BLOCKS = 1  # such blocks on a multiprocessor
TALL_GROUPS_STAGES = 3  # buffers in shared memory, each for a part of the sum
TALL_GROUPS_COLUMNS = 256  # columns of a tall tile
FLAT_GROUPS_THREADS = 128  # threads of a block with a flat tile
FLAT_GROUPS_BLOCKS = 2  # such blocks on a multiprocessor
FLAT_GROUPS_STAGES = 3  # buffers in shared memory, each for a part of the sum
FLAT_GROUPS_COLUMNS = 192  # columns of a flat tile

PANEL = 64  # rows of a flat tile; channels, and positions, of a tile that staging transposes
LINE_NBYTES = 128  # bytes of a line of shared memory: channels of a position, for example
STAGED_TAPS = 32  # most taps of a kernel with staged products: each has a bit in StagedRow
TOTAL_CHANNELS = 32  # channels of a block that adds up the parts of W's gradient
TOTAL_LINES = 128  # most lines of TOTAL_CHANNELS weights, of one filter and tap, of such a block

# ---- direct gradients of 2-D convolutions of few channels: see conv/direct.cuh ----
DIRECT_THREADS = 256  # threads of a block that computes a tile of X's gradient
DIRECT_WIDTH = 16  # positions of a tile along the last axis
DIRECT_POSITIONS = 256  # positions of a tile of X's gradient
DIRECT_ROWS = 16  # most elements of X at the stride x stride places of a position, of all channels
DIRECT_DEPTH = 128  # positions of a tile over which W's gradient is summed at a time
DIRECT_HALO = 512  # most runs of X that such a tile reads
DIRECT_COLUMNS = 256  # columns, elements of runs, of a block's tile of W's gradient
# Most elements of a run: of X at as many neighbouring columns as the stride, of all channels.
# Shared memory has room for so many for each run.
DIRECT_RUN = 8

_PLACES = i32[AXES]  # type of a field with a number for each axis
_TAPS = dict.fromkeys(("kernel", "stride", "dilation", "pad"), _PLACES)
_GEOMETRY = {"image": _PLACES, "output": _PLACES, **_TAPS}  # image: X's extents; output: Y's

# A convolution, or its data gradient, as a matrix product (conv/image.cuh). written, read: extents
# of the image that is written, and read. residues: what positions are divided by to get their
# residues, 1 in a convolution. tap_steps: from a tap of a residue to its next tap. batch: images.
# rows, depth: channels of a group that are written, and read; the latter in `parts` parts, of
# which shared memory has one. row_tiles: tiles of rows of a group. The launch has `tiles` tiles of
# rows, numbered through all groups, from first_tile on. of_channel: 1, or rows of a channel if
# each residue of the strides `spread` has a row of its own; then tap j of residue r is tap r -
# skipped + j spread of W, whose extents are w_kernel.
ImageLayout = Struct(
    "ImageLayout",
    written=_PLACES,
    read=_PLACES,
    **_TAPS,
    residues=_PLACES,
    tap_steps=_PLACES,
    batch=i32,
    groups=i32,
    rows=i32,
    depth=i32,
    parts=i32,
    row_tiles=i32,
    first_tile=i32,
    tiles=i32,
    of_channel=i32,
    spread=_PLACES,
    w_kernel=_PLACES,
    skipped=_PLACES,
    is_gradient=flag,
)

# The gradient of W as a matrix product (conv/weight.cuh). step: what DEPTH positions on is, as
# images and as steps along each axis. rows, channels: filters and channels of a group.
# padded_channels: channels rounded up to whole vectors. row_tiles, column_tiles: tiles of a group.
# The launch has `tiles` tiles, numbered through all groups, from first_tile on. positions: output
# positions of all images; a part of the sum has positions_of_part of them, a multiple of DEPTH.
WeightLayout = Struct(
    "WeightLayout",
    **_GEOMETRY,
    step=i32[AXES + 1],
    groups=i32,
    rows=i32,
    channels=i32,
    padded_channels=i32,
    row_tiles=i32,
    column_tiles=i32,
    first_tile=i32,
    tiles=i32,
    positions=i64,
    positions_of_part=i64,
)

# What an output position reads of the staged X. offset: vectors of 16 bytes from X's start to what
# tap 0 reads, even outside of X. inside: bit i is set if what tap i reads is inside of X.
StagedRow = Struct("StagedRow", offset=i32, inside=u32)

# An array (image, channel, position) that is staged as (image, position, channel), by tiles of
# PANEL x PANEL: `channels` channels, filled up with zeros to `padded`, and `plane` positions of an
# image, in plane_tiles tiles. width: positions that a thread loads as a vector; 0 if vectors go on
# from a channel to the next; -1 if channels are last already. blocks: of the launch, for this
# array; 0 if it is not staged.
StagedArray = Struct(
    "StagedArray", channels=i32, padded=i32, plane=i32, width=i32, plane_tiles=i32, blocks=i32
)

# How W is staged if `joined` groups become one, with zeros between them; 0: no groups are joined.
# filters, channels: of one group before; taps: of the kernel. Rows of the staged W are filters, or
# channels if is_gradient. channels_last: W is (filter, tap, channel), else (filter, channel, tap).
JoinedGroups = Struct(
    "JoinedGroups",
    joined=i32,
    filters=i32,
    channels=i32,
    taps=i32,
    is_gradient=flag,
    channels_last=flag,
)

# A staging launch: of X, Y and W, then of n_rows StagedRows, one for each of `positions` output
# positions of all images; rows after these are zeros. vectors: vectors of 16 bytes of a position
# of the staged X.
StagingLayout = Struct(
    "StagingLayout",
    x=StagedArray.one,
    y=StagedArray.one,
    w=StagedArray.one,
    groups=JoinedGroups.one,
    **_GEOMETRY,
    n_rows=i64,
    positions=i64,
    vectors=i32,
)

# How a staged product is written, and where it reads W. width: neighbouring positions that a store
# writes, or channels if the image that is written has channels last. w_row, w_tap: vectors of 16
# bytes from a row of W, and from a tap, to the next. as_it_lies: W was not transposed, and w_row
# is from a channel that is read to the next; all rows of one lie side by side.
StagedImage = Struct(
    "StagedImage", width=i32, w_row=i32, w_tap=i32, as_it_lies=flag, channels_last=flag
)

# A convolution of groups of one channel, with `filters` filters each, or one of its gradients.
# Threads go through strips, STRIP positions of a line, of the array that is written; in the
# gradient of W, of the output. Divisors: by the strips of a line (strips), the lines of a slice,
# which is the last two axes (lines), and the strips of an image's channel (of_plane).
DepthwiseLayout = Struct(
    "DepthwiseLayout",
    **_GEOMETRY,
    batch=i32,
    groups=i32,
    filters=i32,
    strips=Divisor.one,
    lines=Divisor.one,
    of_plane=Divisor.one,
)

_AXES = i32[AXES - 1]  # type of a field with a number for each of the last two axes

# A direct gradient, along the last two axes. window, window_pad: extents and padding of the kernel
# on X reduced by its strides, with a channel for each residue (conv/direct.cuh); window tap 0 of
# residue 0 is tap -skipped of W. tiles: tiles of positions of an image. of_column, of_channel:
# elements of X from a column, and from a channel, to the next. w_channels_last: W is (filter, tap,
# channel). in_pairs: all runs begin at even elements of an aligned X.
DirectLayout = Struct(
    "DirectLayout",
    image=_AXES,
    output=_AXES,
    kernel=_AXES,
    stride=_AXES,
    pad=_AXES,
    window=_AXES,
    window_pad=_AXES,
    skipped=_AXES,
    tiles=_AXES,
    batch=i32,
    channels=i32,
    filters=i32,
    of_column=i32,
    of_channel=i32,
    w_channels_last=flag,
    in_pairs=flag,
)
