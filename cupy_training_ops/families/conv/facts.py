# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of conv share: cuda_src/conv/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Struct, flag, i32, i64, u32
from ...facts import Divisor

AXES = 3  # that kernels have
THREADS = 256
BLOCKS = 2  # of a multiprocessor
COLUMNS = 128  # of a tile
PART_NBYTES = 64  # of a row of a tile, in shared memory at a time
WIDE_ROWS = 128  # of a tile; of 2-byte types such tiles have lines alone
FEW_ROWS = 32  # kernels of floats in such tiles are compiled beside those with twice as many
SIDE = 32  # channels of a block that sums lines of them
STRIP = 4  # neighbouring positions of a thread, of groups of one channel
TAPS = 3  # along each of two axes, that a block sums at a time there
WIDE_TAPS = 5  # where there are more, with a stride and dilation of 1, in types of at most 4 bytes
LINE_VECTORS = 32  # of channels, that a block has where these lie side by side
LINE_TAPS = 32  # at most, whose weights it has in shared memory
LINE_SUMS = 4  # neighbouring channels of a thread there, that sums weights or walks down rows

# Where tiles are copied from arrays whose channels lie side by side. Tall tiles have two panels of
# rows, flat ones one.
STAGED_THREADS = 128
STAGED_BLOCKS = 2  # of a multiprocessor
STAGED_STAGES = 2  # parts of a sum in shared memory; the L1 cache has the rest of it
TALL_COLUMNS = 128
FLAT_COLUMNS = 192
SPLIT_COLUMNS = 128  # of flat tiles of floats in parts, which have more registers for them
# The same of 2-byte types on 9.0, whose warpgroups multiply them: products of so many stages go on
# while the next is copied.
TALL_GROUPS_THREADS = 256
TALL_GROUPS_BLOCKS = 1
TALL_GROUPS_STAGES = 3
TALL_GROUPS_COLUMNS = 256
FLAT_GROUPS_THREADS = 128
FLAT_GROUPS_BLOCKS = 2
FLAT_GROUPS_STAGES = 3
FLAT_GROUPS_COLUMNS = 192
PANEL = 64  # rows of a part of a warp, and channels or positions that are copied together
LINE_NBYTES = 128  # of a line of shared memory
STAGED_TAPS = 32  # at most, a bit for each
TOTAL_CHANNELS = 32  # of a block that adds up parts of W's gradient
TOTAL_LINES = 128  # of so many weights, one for each filter and tap, of such a block

# Gradients of few channels, of what lies in such lines: tiles of positions that read a halo.
DIRECT_THREADS = 256  # that make a tile of an image
DIRECT_WIDTH = 16  # of a tile of positions, along the lines of an image
DIRECT_POSITIONS = 256  # of a tile of an image
DIRECT_ROWS = 16  # residues of all channels, at most
DIRECT_DEPTH = 128  # positions of a part of the sum of weights
DIRECT_HALO = 512  # vectors of X that these read, at most
DIRECT_COLUMNS = 256  # of a tile of weights
DIRECT_RUN = 8  # neighbours that are a vector of X, at most

_PLACES = i32[AXES]
_TAPS = dict.fromkeys(("kernel", "stride", "dilation", "pad"), _PLACES)
_GEOMETRY = {"image": _PLACES, "output": _PLACES, **_TAPS}

# Extents of what is written and read. Positions are divided into `residues`, 1 in a convolution;
# `tap_steps` are between taps of a residue. `rows` and `depth` are channels of a group that are
# written, and read, in `parts` of the depth; `row_tiles` of a group. This launch has `tiles` of
# rows, of all groups, from the first one on. A channel has `of_channel` rows: residues of these
# strides, or 1. Tap j of residue r is tap r - skipped + j spread of W.
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

# `step`: DEPTH positions on, images, then along each axis. `rows` and `channels` of a group, and
# those to a multiple of neighbours that are stored together. This launch has `tiles`, of all
# groups, from the first one on. `positions` of all images; those of a part are a multiple of DEPTH.
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

# A position's reads: the vector of 16 bytes of its first tap, and a bit for each tap inside.
StagedRow = Struct("StagedRow", offset=i32, inside=u32)

# An array (images, channels, plane), whose channels a launch puts side by side, padded to so many,
# by tiles of PANEL channels and positions; `width` neighbours are loaded together, or 0, where the
# planes of a tile are as one, or -1, where channels lie side by side already.
StagedArray = Struct(
    "StagedArray", channels=i32, padded=i32, plane=i32, width=i32, plane_tiles=i32, blocks=i32
)

# W where groups are `joined`, so many to one, or 0: filters and channels of one, how W lies, and
# how it is wanted.
JoinedGroups = Struct(
    "JoinedGroups",
    joined=i32,
    filters=i32,
    channels=i32,
    taps=i32,
    is_gradient=flag,
    channels_last=flag,
)

# X, Y and W, and then `n_rows` that say what positions of the output read of X, which has so many
# vectors of 16 bytes for each position.
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

# How an image is written: `width` neighbouring columns together, or rows where it has its channels
# last. Rows of W are so many vectors of 16 bytes apart, and its taps; or neighbours of the sum are,
# each with all rows, where it is read `as_it_lies`.
StagedImage = Struct(
    "StagedImage", width=i32, w_row=i32, w_tap=i32, as_it_lies=flag, channels_last=flag
)

# Threads walk through strips of the array that is written, or in the gradient of weights of the
# output: `strips` of a line, `lines` of a slice, strips `of_plane`. A group has so many `filters`.
DepthwiseLayout = Struct(
    "DepthwiseLayout",
    **_GEOMETRY,
    batch=i32,
    groups=i32,
    filters=i32,
    strips=Divisor.one,
    lines=Divisor.one,
    of_plane=Divisor.one,
    in_vectors=flag,
)

# Along two axes. `window`: taps of what has a channel for each residue of the strides, with these
# pads, whose first is tap -skipped of W; `tiles` of positions of an image. A column of X, and a
# channel, are so many elements from the next. Runs lie `in_pairs` of 4 bytes.
_AXES = i32[AXES - 1]
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
