"""Compiled part of dpiframe_core. Dimension letters: B batch, F fields, W output width."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, type_check_only

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32] | NDArray[np.int64]
Policy = Literal["serial", "depth_first", "breadth_first"]

@type_check_only
class BuildInfo(TypedDict):
    version: str
    compiler: str
    cuda: bool
    cuda_archs: list[str]
    simd: str

class DeviceLostError(RuntimeError):
    """CUDA refuses every further call of this process; says what failed."""

class DeviceMemoryError(RuntimeError):
    """A GPU has too little memory; says how much was asked for and how much is free."""

def build_info() -> BuildInfo:
    """What this module was built with; `simd` is what the CPU lookup uses on this machine."""

def gpu_arch(device: int) -> str:
    """The architecture that kernels are compiled for at load, such as sm_90a."""

def cuda_device_count() -> int:
    """CUDA devices that can be used; 0 without a driver or without the CUDA part. Never raises."""

def begin_cuda(device: int) -> None:
    """Make the process's context on a device, which takes tenths of a second, while other threads
    go on. Never raises: what fails fails again when an engine is loaded. Without the CUDA part
    nothing is done.
    """

def embedded_headers() -> list[tuple[str, str]]:
    """Name and text of each header that a kernel compiled at load may include."""

class Nvrtc:
    """CUDA's run-time compiler: a library by its path or name. RuntimeError: there is none."""

    def __init__(self, path: str) -> None: ...
    @property
    def version(self) -> str:
        """Such as "13.0"."""
    def compile(self, source: str, name: str, options: Sequence[str]) -> bytes:
        """The cubin of a source; threads run in parallel. RuntimeError: with the compiler's log."""

Validity = tuple[NDArray[np.uint8], int] | None  # Arrow's bitmap, bit of the first value; no nulls

def hashed_string_rows(
    offsets: NDArray[np.int32] | NDArray[np.int64],
    data: NDArray[np.uint8],
    validity: Validity,
    seed: int,
    modulus: int,
    out: NDArray[np.int32],
) -> None:
    """Write 2 + XXH64(data[offsets[i]:offsets[i + 1]]) % modulus, 0 for nulls and empty strings.

    offsets [n + 1], out [n]. ValueError: offsets that decrease or leave `data`.
    """

def hashed_int64_rows(
    values: NDArray[np.int64], validity: Validity, seed: int, modulus: int, out: NDArray[np.int32]
) -> None:
    """The same of the 8 little-endian bytes of each value; values and out [n]."""

class ValueEncoder:
    """What a feature makes of single values: an id, or a dense feature's number."""

    def standardise(self, values: NDArray[np.float64], out: NDArray[np.float32]) -> None:
        """Of a dense feature: its numbers [n] for values [n], its `fill` for NaN."""

def hash_encoder(seed: int, modulus: int) -> ValueEncoder:
    """As `hashed_string_rows` and `hashed_int64_rows`."""

def modulo_encoder(modulus: int) -> ValueEncoder:
    """2 + x mod modulus of integers, never negative."""

def bucket_encoder(lowest: int, small: NDArray[np.int32], steps: NDArray[np.int64]) -> ValueEncoder:
    """As `bucket_rows`; real numbers count as the next integer below, NaN as missing."""

def dense_encoder(log1p: bool, mean: float, std: float, fill: float) -> ValueEncoder:
    """(t(x) - mean) / std in float64, rounded to float32; t(x) = x, or sign(x) ln(1 + |x|)."""

class StringIndex(ValueEncoder):
    """Finds strings among distinct ones, data[offsets[i]:offsets[i + 1]]; keeps their memory.

    Takes 8 to 16 bytes a string more. String i has the row rows_of_values[i], or 2 + i without
    them. ValueError: strings that are not distinct, bad offsets.
    """

    def __init__(
        self,
        offsets: NDArray[np.int32],
        data: NDArray[np.uint8],
        rows_of_values: NDArray[np.int32] | None = None,
        missing_row: int = 0,
        unseen_row: int = 1,
    ) -> None: ...
    def rows(
        self,
        offsets: NDArray[np.int32] | NDArray[np.int64],
        data: NDArray[np.uint8],
        validity: Validity,
        out: NDArray[np.int32],
    ) -> None:
        """Write the row of each string, `unseen_row` for unseen ones, `missing_row` for nulls, and
        for empty strings unless they are known.
        """

class Int64Index(ValueEncoder):
    """The same of integers."""

    def __init__(
        self,
        values: NDArray[np.int64],
        rows_of_values: NDArray[np.int32] | None = None,
        missing_row: int = 0,
        unseen_row: int = 1,
    ) -> None: ...
    def rows(
        self, values: NDArray[np.int64], validity: Validity, out: NDArray[np.int32]
    ) -> None: ...

def bucket_rows(
    values: NDArray[np.int32] | NDArray[np.int64],
    validity: Validity,
    lowest: int,
    small: NDArray[np.int32],
    steps: NDArray[np.int64],
    out: NDArray[np.int32],
) -> None:
    """Write the rows of integers [n] in buckets, 0 for nulls; out [n].

    `small` [S] holds the rows of `lowest`, `lowest` + 1, ..., its first also that of all below;
    beyond, the row grows by one at each of `steps` [T], which ascend.
    """

def gather_codes(
    codes: NDArray[np.int32] | NDArray[np.float32],
    indices: NDArray[np.int32],
    validity: Validity,
    out: NDArray[np.int32] | NDArray[np.float32],
) -> None:
    """Write codes[indices[i]], the last code for nulls; indices and out [n], out of codes' type.

    ValueError: an index that is not before the last code.
    """

def merge_axes(
    sizes: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """For tests: the axes of operands with these strides, neighbours merged where they are one."""

def operand_columns(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """For tests: the column of each element of an operand, as a GPU finds it."""

def evaluate_expression(
    postfix: Sequence[float | str], xs: NDArray[np.float32]
) -> tuple[NDArray[np.float32], int]:
    """For tests: the expression [n] of operands xs [K, n] as a GPU computes it, and the
    intermediate results that it keeps at once. ValueError: no expression.
    """

def score_statistics(
    scores: NDArray[np.float32],
) -> tuple[float, float, float, NDArray[np.int64]]:
    """Smallest and largest score, their sum in float64, and the histogram [202] of scores [B].

    Bin k holds the scores p with p >= sigmoid(e) for exactly k of the edges e = -10, -9.9, ..., 10.
    The sum is finite just where all scores are. NaN is in bin 0 and neither smallest nor largest;
    where there is no other score these are inf and -inf. ValueError: another type or shape.
    """

def unzstd(packed: bytes, size: int) -> bytes:
    """The content of one frame of zstd, by the code that unpacks pages on a GPU.

    ValueError: it is not just `size` bytes long, or the frame is corrupt, has a checksum or needs a
    dictionary.
    """

def unsnappy(packed: bytes, size: int) -> bytes:
    """The content of a page of snappy, by the code that unpacks pages on a GPU.

    ValueError: it is not just `size` bytes long, or the page is corrupt.
    """

def unlz4(packed: bytes, size: int) -> bytes:
    """The same of a block of LZ4 (parquet's LZ4_RAW)."""

def gunzip(packed: bytes, size: int) -> bytes:
    """The content of gzip's members, of `size` bytes together. ValueError: as above."""

class HostMemory:
    """Zeroed memory for large arrays (a writable buffer of bytes). MemoryError where there is none.

    Once locked, a GPU reads it by itself: arrays in it need not be packed.
    """

    def __init__(self, bytes: int) -> None: ...
    def lock(self) -> bool:
        """Lock the pages; whether they are. False without CUDA, or where the system refuses."""
    def __buffer__(self, flags: int) -> memoryview: ...

class StatisticsLimits:
    """What the numbers of columns must lie in, both ends included; None: only nulls are told."""

    def __init__(self, columns: Sequence[tuple[str, tuple[float, float] | None]]) -> None: ...

class ParquetFile:
    """Reads columns of numbers of a parquet file straight into given arrays; many threads may.

    Flat int32, int64, float and double columns without nulls, PLAIN or dictionary-encoded, not
    compressed or by snappy or zstd. OSError; ValueError: no parquet.
    """

    def __init__(self, path: str) -> None: ...
    @staticmethod
    def open_each(paths: Sequence[str]) -> list[ParquetFile | None]:
        """Each file; None for one that cannot be opened: who opens it alone learns why."""
    @staticmethod
    def of_end(size: int, end: NDArray[np.uint8]) -> ParquetFile:
        """A file of `size` bytes by its last ones, which hold the footer; it reads no columns."""
    def over(
        self, memory: NDArray[np.uint8], ranges: Sequence[tuple[int, int, int]]
    ) -> ParquetFile:
        """The same file with bytes that were fetched: columns are decoded where they lie.

        A range is its first byte in the file, its first byte in memory, its number of bytes; 64
        more bytes of memory follow each. ValueError: ranges share bytes, or do not fit.
        """
    def chunk_ranges(self, names: Sequence[str], first: int, stop: int) -> list[tuple[int, int]]:
        """First byte and number of bytes of the chunks of these columns in row groups [first, stop)

        Nested columns too; those of a row group as they lie in the file. ValueError: no such
        column, or chunks outside of the file, or that share bytes.
        """
    @property
    def size(self) -> int: ...
    @property
    def mtime_ns(self) -> int:
        """Time of the last modification when it was opened; 0 for one by its end."""
    @property
    def footer(self) -> bytes:
        """The footer as it is in the file (Thrift)."""
    @property
    def group_rows(self) -> list[int]:
        """Rows of each row group."""
    @property
    def encrypted(self) -> list[str]:
        """The columns of which any column chunk is encrypted, where the footer is not."""
    def empty(self) -> bytes:
        """A parquet file without rows of the same schema."""
    def statistics_problems(
        self, limits: StatisticsLimits
    ) -> list[tuple[str, Literal["null", "range"], int, int | float, int]]:
        """What statistics show to be wrong with flat columns: nulls, numbers outside of limits.

        (column, kind, first row group that shows it, number of nulls or an end that is outside,
        row groups that show it). ValueError: statistics that are not of such a column.
        """
    def number_type(self, name: str, first: int, stop: int) -> str | None:
        """numpy's name of the type in row groups [first, stop); None: not for `read`."""
    def read(
        self, names: Sequence[str], first: int, stop: int, outs: Sequence[NDArray[Any]]
    ) -> None:
        """Fill one contiguous array [rows of those groups] of its type for each column.

        OSError; ValueError: pages are corrupt, hold nulls, or what is not known here.
        """
    def list_type(self, name: str, first: int, stop: int) -> str | None:
        """numpy's name of the type of a column's elements; None: not for `read_list`."""
    def read_list(
        self,
        name: str,
        first: int,
        stop: int,
        outs: Sequence[NDArray[Any]],
        pad: float,
        pads_before: bool,
        keeps_last: bool,
    ) -> NDArray[np.int64]:
        """Pad or cut the lists of a column to as many elements as there are `outs`, one contiguous
        array [rows of those groups] for each: int32 or int64 ids, as wide as the elements at least
        and wider than unsigned ones, or float32 numbers. Null lists are empty ones.

        Gives the rows, ascending, with a null among the elements that count; it is 0 there.
        OSError; ValueError: pages are corrupt, or what is not known here.
        """
    def is_encodable(self, name: str, first: int, stop: int) -> bool:
        """Whether a column holds strings or numbers that `read_encoded` takes."""
    def read_encoded(
        self,
        names: Sequence[str],
        first: int,
        stop: int,
        encoders: Sequence[ValueEncoder],
        outs: Sequence[NDArray[np.int32] | NDArray[np.float32]],
    ) -> None:
        """Encode raw columns, for each encoder the column of that name into one contiguous array
        [rows of those groups]; a column of several encoders is decoded once.

        OSError; ValueError: pages are corrupt, or what is not known here.
        """
    def encoded_pages_bytes(
        self, names: Sequence[str], first: int, stop: int, encoders: Sequence[ValueEncoder]
    ) -> int:
        """Bytes of memory that `read_encoded_pages` needs, by the footer. ValueError as there."""
    def read_encoded_pages(
        self,
        names: Sequence[str],
        first: int,
        stop: int,
        encoders: Sequence[ValueEncoder],
        memory: NDArray[np.uint8],
        unpack_above: int | None = None,
    ) -> ColumnPages:
        """Fill `memory` with the pages of raw columns, and list them: they give int32 codes
        [columns, rows of those groups], as by `read_encoded`, of each column by its encoder.

        Values of dictionaries are encoded, once each, and chunks with pages that a GPU does not
        encode; indices of dictionaries and PLAIN texts that are hashed stay as they are stored.
        `unpack_above` as for `read_pages`.
        OSError; ValueError: as `read_encoded`, and pages that are compressed otherwise than by
        zstd, snappy or LZ4. Whether pages are corrupt inside shows when they are unpacked.
        """
    def feature_types(self, names: Sequence[str], first: int, stop: int) -> list[str | None]:
        """numpy's name of the type in which the numbers of each column fit: "<i4", "<i8" or "<u8"
        of integers of any width and sign, "<f4" or "<f8"; there may be nulls. None: not for
        `read_features`.
        """
    def read_features(
        self, names: Sequence[str], first: int, stop: int, outs: Sequence[NDArray[Any]]
    ) -> list[NDArray[np.int64]]:
        """Fill one contiguous array [rows of those groups] for each column, of its `feature_types`;
        float32 takes any number. The rows of each column's nulls, which become 0, ascending.

        OSError; ValueError: pages are corrupt, or hold what is not known here.
        """
    def pages_bytes(self, names: Sequence[str], first: int, stop: int) -> int:
        """Bytes of memory that `read_pages` needs for these columns. ValueError as there."""
    def unpacked_bytes(self, names: Sequence[str], first: int, stop: int) -> int:
        """Bytes that the compressed chunks of these columns unpack to, by the footer: as much room
        as `read_pages` can use. ValueError as there.
        """
    def read_pages(
        self,
        names: Sequence[str],
        first: int,
        stop: int,
        memory: NDArray[np.uint8],
        unpack_above: int | None = None,
    ) -> ColumnPages:
        """Fill `memory` with the columns' pages as they are stored, and list them. Pages of more
        than `unpack_above` bytes (None: those far longer than most) are decompressed into what
        room there is behind them, the longest first.

        All columns have numbers of 4 bytes, or all of 8; pages are not compressed, or by zstd,
        snappy or LZ4.
        OSError; ValueError: headers or checksums are corrupt, there are nulls, or what a GPU does
        not unpack. Whether pages are corrupt inside shows when they are unpacked.
        """

def read_whole_files(
    files: Sequence[tuple[str, int, int, int]],
    plain: Sequence[tuple[str, str, NDArray[Any]]],
    dense: Sequence[tuple[str, NDArray[np.float32]]],
    ids: Sequence[str],
    memory: NDArray[np.uint8],
    unpack_above: int | None = None,
) -> tuple[ColumnPages, list[int], bool]:
    """Read small files of the same columns as one: the rows of all, one file behind the other.

    `files`: path, bytes, time of modification in ns and rows of each, as planned. `plain`: columns
    that are read as they are, their numpy types and where they go, as by `ParquetFile.read`;
    `dense` as by `read_features`; the pages of `ids` go to `memory`, as by `read_pages`, but none
    is decompressed with None. Returns these, the rows of all row groups, and whether a dense value
    is null.
    OSError; ValueError: as these, and where a file is not the planned one, before or after it was
    read, or `memory` is too small.
    """

class ColumnPages:
    """Pages of columns of numbers, whose bytes lie in memory that the caller keeps."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def number_bytes(self) -> int: ...
    @property
    def compressed_bytes(self) -> int:
        """What was read."""
    @property
    def uncompressed_bytes(self) -> int:
        """The room that all compressed pages need."""
    @property
    def num_pages(self) -> int: ...
    def append(self, file: ColumnPages, at: int) -> None:
        """Append the same columns of another file, whose rows follow; its bytes lie at `at` of the
        memory.

        ValueError: numbers of another size, or more memory than pages may take.
        """
    def decode(self, memory: NDArray[np.uint8], out: NDArray[np.int32] | NDArray[np.int64]) -> None:
        """For tests: fill out [columns, rows] on this thread, page by page as a GPU does.

        ValueError: pages are corrupt or hold nulls.
        """

def empty_table(rows: int, dim: int) -> NDArray[np.float32]:
    """An uninitialised table [rows, dim] that starts on a cache line and asks for huge pages.

    Lookups into large tables run up to twice as fast from it as from a plain array.
    """

class LookupField:
    """One field of a lookup; keeps the arrays it was given, without a copy."""

    def __init__(
        self,
        table: NDArray[np.float32],
        out_column: int,
        wide: NDArray[np.float32] | None = None,
        in_fm: bool = False,
        oov_row: int = -1,
    ) -> None:
        """`table` [rows, dim] goes to columns [out_column, out_column + dim); `wide` [rows].

        `oov_row` stands in for ids outside the table (-1: none). ValueError: another type or shape.
        """
    @property
    def rows(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def out_column(self) -> int: ...
    @property
    def oov_row(self) -> int: ...

class LookupReport:
    """What a lookup saw; `first_*` describe the smallest (row, field) with a bad id, else -1."""

    @property
    def bad_counts(self) -> NDArray[np.int64]: ...
    @property
    def first_field(self) -> int: ...
    @property
    def first_row(self) -> int: ...
    @property
    def first_value(self) -> int: ...

class MultiTableLookup:
    """Lookup of all fields of a batch in one call, with FM and the wide sum in the same pass."""

    def __init__(self, fields: Sequence[LookupField], num_threads: int = 0) -> None:
        """`num_threads` 0 takes one a usable processor. ValueError: fields that contradict."""
    @property
    def num_threads(self) -> int: ...
    def run(
        self,
        ids: Sequence[Ids] | Ids,
        out: NDArray[np.float32],
        use_oov: bool = False,
        fm: NDArray[np.float32] | None = None,
        wide: NDArray[np.float32] | None = None,
    ) -> LookupReport:
        """Fill `out` [B, W], and `fm` [B], `wide` [B] where given, from ids [F][B].

        fm[b] = 0.5 * sum_d((sum_f v)^2 - sum_f v^2) over the `in_fm` fields, wide[b] = the sum of
        the fields' wide weights. Id columns may be strided, rows of `out` too; columns of `out`
        that belong to no field are left alone. An id outside its table takes its field's `oov_row`
        where `use_oov` is set and it has one, else zeros. The result is the same for any
        `num_threads`.
        ValueError: a wrong type, shape or number of fields.
        """

def find_bad_ids(
    ids: Sequence[Ids] | Ids, rows: Sequence[int]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Mask [B] of samples with an id outside [0, rows[f]); number of such ids a field [F]."""

def rows_of_ids(ids: Sequence[Ids] | Ids, fields: Sequence[tuple[int, int, int, int]]) -> Ids:
    """Rows [F, B] of the tables from ids that may repeat, -1 of what is none; int32 where all rows
    of all tables are. A field is rows, period (0: none repeat), least and last id.

    ValueError: a wrong type, shape or number of fields.
    """

class CudaLookupField:
    """A LookupField whose arrays lie on the device; only in a build with CUDA.

    Arrays are anything with `__cuda_array_interface__`, such as torch tensors.
    """

    def __init__(
        self,
        table: object,
        out_column: int,
        wide: object | None = None,
        in_fm: bool = False,
        oov_row: int = -1,
    ) -> None: ...

class CudaMultiTableLookup:
    """MultiTableLookup on the device that is current when it is made."""

    def __init__(self, fields: Sequence[CudaLookupField]) -> None: ...
    def run(
        self,
        ids: object,
        out: object,
        report: object,
        use_oov: bool = False,
        fm: object | None = None,
        wide: object | None = None,
        stream: int = 0,
    ) -> None:
        """Enqueue the lookup of ids [F, B] (int32, int64) on a stream; neither waits nor allocates.

        `report` int64 [F + 1]: the number of bad ids of each field is added to the first F entries,
        and the last becomes the minimum of itself and row * F + field of each bad id. The caller
        sets it before, and keeps all arrays until the stream is done.
        """
    def prepare(
        self,
        ids: object,
        out: object,
        report: object,
        use_oov: bool = False,
        fm: object | None = None,
        wide: object | None = None,
    ) -> CudaLookupCall:
        """`run` with its arguments checked and captured once, for calls on the same arrays.

        It keeps the arrays, and touches none of them before it is run. Not while a stream captures.
        """

class CudaLookupCall:
    """A lookup that keeps its arguments, as a CUDA graph of one kernel; one caller at a time."""

    def run(self, stream: int = 0) -> None:
        """Enqueue the lookup: replay the graph, or launch the kernel where the stream captures."""
    def run_and_wait(self, stream: int = 0) -> None:
        """Replay the graph and wait until all that it and the stream before it wrote can be read;
        not while the stream captures.
        """

def plain_gather(
    table: int, rows: int, num_rows: int, row_bytes: int, out: int, stream: int = 0
) -> None:
    """Enqueue out[i] = table[rows[i]]; addresses of device memory, `rows` int64 [num_rows].

    For benchmarks: the plain kernel that a lookup is measured against. `row_bytes` is a multiple
    of 16; nothing is checked on the device.
    """

class OneCaller:
    """`with` it around each use of an engine. RuntimeError in a second thread at the same time, and
    in a fork of the process that made it.
    """

    def __enter__(self) -> None: ...
    def __exit__(self, kind: object, error: object, trace: object) -> None: ...

class DeviceTensors:
    """Finds a model's inputs among tensors of `type` on a device (-1: the host's memory, for tests)
    by the C functions that DLPack 1.3 describes; never raises.
    """

    def __init__(self, type: type, num_fields: int, num_dense: int, device: int) -> None: ...
    def matrices(
        self, ids: Any, dense: Any
    ) -> tuple[tuple[int, int, int], tuple[int, int, int], int] | None:
        """Address, stride in numbers and bytes of a number of ids [F, B] and of dense [N, B], zeros
        for what the model has not; and B. None where the library has no such functions or anything
        does not fit.
        """

class CudaVector:
    """An uninitialised float32 [length] on a device, with `__cuda_array_interface__`."""

    def __init__(self, length: int, device: int) -> None: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

def weight_bytes(precision: str, kind: str, rows: int, columns: int) -> int:
    """Bytes that a weight takes on a device; `kind` is numbers, table or product."""

def linear_configs(
    precision: str, max_rows: int, n: int, k: int, places: int = 1
) -> list[LinearConfig]:
    """One configuration of each kernel that products k -> n, or so many that are one, take over all
    batch sizes.
    """

def max_head_partials(precision: str, max_rows: int, n: int, k: int) -> int:
    """The most parts that the head of a product k -> n is summed in."""

def batch_buckets(max_rows: int) -> list[int]:
    """The numbers of rows that steps are launched for, ascending."""

class ArenaView:
    """Columns of a buffer in the arena; `offset` in bytes, `row_stride` in elements."""

    def __init__(self, offset: int, row_stride: int, width: int, is_float: bool) -> None: ...

class CudaSlot:
    """A slot of a lookup; weights by number, -1 for none."""

    def __init__(
        self,
        field: int,
        table: int,
        wide: int,
        rows: int,
        dim: int,
        column: int,
        oov_row: int,
        in_fm: bool,
    ) -> None: ...

class CudaDenseSlot:
    """Dense features that a lookup brings along: csrc/kernels/embedding/multi_table_lookup_cuda.h;
    weights by number, -1 for none.
    """

    def __init__(
        self,
        first: int,
        count: int,
        dim: int,
        column: int,
        weight: int,
        shift: int,
        wide: int,
        numbers: ArenaView | None,
        in_fm: bool,
    ) -> None: ...

class HeadPart:
    """A summand of the logit: a . weight, a * b, or a; partial_n, partial_k: see cuda_program.h."""

    def __init__(
        self,
        a: ArenaView,
        b: ArenaView | None = None,
        weight: int = -1,
        partial_n: int = 0,
        partial_k: int = 0,
    ) -> None: ...

class ChainProduct:
    """A product of a chain (csrc/kernels/chain/product_chain.cuh)."""

    def __init__(
        self,
        weight: int,
        n: int,
        k: int,
        vectors: int,
        out: ArenaView | None,
        partial: int | None,
        sums: int | None,
        squares: int | None,
    ) -> None: ...

class ProductStep:
    """A product with its epilogue; ranges of columns are of its output."""

    def __init__(
        self,
        x: ArenaView,
        n: int,
        weight: int,
        bias: int,
        out: ArenaView | None,
        relu: Sequence[tuple[int, int]],
        cross_begin: int,
        x0: ArenaView | None,
        xl: ArenaView | None,
        head_begin: int,
        head_width: int,
        head: int,
        partial: int | None,
        rows_a_sample: int = 1,
        places: int = 1,
        place_step: int = 0,
    ) -> None:
        """`places`: so many products are one, whose x begin `place_step` columns apart."""

class ProductRows:
    """What a product with a compiled epilogue makes of its rows (offsets of partial sums of them
    and of their squares), and reads of those of x, which a product of made_n and made_k made.
    """

    def __init__(
        self,
        sums_out: int | None,
        squares_out: int | None,
        sums: int | None,
        squares: int | None,
        made_n: int,
        made_k: int,
        width: int,
        eps: float,
    ) -> None: ...

class MapSource:
    """A further operand of a product's epilogue: a view, or the number of a weight; `place_step`:
    of one number a sample, columns from one place's to the next one's.
    """

    def __init__(self, view: ArenaView | None, weight: int = -1, place_step: int = 0) -> None: ...

class TensorOperand:
    """Element [i, j, ...] of a sample is column offset + i strides[0] + j strides[1] + ..."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int], offset: int) -> None: ...

class MapOp:
    """The operations have the fields of dpiframe_core/program/tensor_ops.py; a map's expression is
    in postfix order.
    """

    def __init__(self, postfix: Sequence[float | str]) -> None: ...

class ReduceOp:
    def __init__(self, function: str, axes: Sequence[int]) -> None: ...

class SoftmaxOp:
    def __init__(self, axes: Sequence[int], guarded: bool) -> None: ...

class LayerNormOp:
    def __init__(self, axes: int, eps: float) -> None: ...

class MatMulOp:
    def __init__(self, batch: int, rows: int, inner: int) -> None: ...

class JoinOp:
    def __init__(self, outer: int) -> None: ...

class TakeOp:
    def __init__(self, index: Sequence[int], behind: int) -> None: ...

class TopKOp:
    def __init__(self, k: int, largest: bool, places: bool) -> None: ...

class TakeAlongOp:
    def __init__(self, places_first: bool) -> None: ...

class FmOp:
    """FM of all rows of the operands, `dim` wide; on a CPU alone."""

    def __init__(self, dim: int) -> None: ...

TensorOp = (
    MapOp
    | ReduceOp
    | SoftmaxOp
    | LayerNormOp
    | MatMulOp
    | JoinOp
    | TakeOp
    | TopKOp
    | TakeAlongOp
    | FmOp
)

class GroupBuffer:
    """A matrix [rows, width] of a group: given, or its own (`is_scratch`), or a constant [width],
    the same for all samples.
    """

    def __init__(
        self, width: int, is_scratch: bool = False, constant: NDArray[np.float32] | None = None
    ) -> None: ...

class GroupStep:
    """An operation whose operands read buffers by number, and where it writes, row-major."""

    def __init__(
        self,
        op: TensorOp,
        sources: Sequence[int],
        operands: Sequence[TensorOperand],
        out: int,
        out_column: int = 0,
    ) -> None: ...

class TensorGroup:
    """Operations that the CPU runs together: a thread takes `tile_samples` samples through all.

    `num_threads` 0: one a processor; `loops`: an instruction set of `host_loops()`, empty for the
    best. ValueError: an operation that has no kernel here, or does not fit its buffers.
    """

    def __init__(
        self,
        buffers: Sequence[GroupBuffer],
        steps: Sequence[GroupStep],
        num_threads: int = 0,
        loops: str = "",
    ) -> None: ...
    @property
    def tile_samples(self) -> int: ...
    @property
    def scratch_floats(self) -> int:
        """Of a sample, in the thread's own memory."""

    @property
    def num_fused(self) -> int:
        """Maps that are computed a slice at a time, as the operand of a product."""

    def run(self, matrices: Sequence[NDArray[np.float32] | None], rows: int) -> None:
        """Run the steps over contiguous matrices [rows, width], one for each buffer that is given,
        None for the others.
        """

def host_loops() -> list[str]:
    """The instruction sets that this processor has loops for, the best last."""

class DeviceMatrix:
    """A row-major matrix in device memory, of "float32", "float16" or "bfloat16"."""

    def __init__(self, address: int, row_stride: int, width: int, type: str) -> None: ...

def tensor_op(
    op: TensorOp,
    sources: Sequence[DeviceMatrix],
    operands: Sequence[TensorOperand],
    out: DeviceMatrix,
    rows: int,
    stream: int = 0,
) -> None:
    """For tests: one operation of `rows` samples; a source with row_stride 0 is the same for all.

    ValueError: the operands do not fit the operation, or read outside their sources.
    """

FUSED_RACECHECK: bool  # built in the form that racecheck can follow (DPIFRAME_RACECHECK)

def fused_mlp_fits(
    dims: Sequence[int],
    columns: Sequence[int],
    num_shifts: int,
    has_cross: bool,
    num_fm: int,
    num_ids: int,
    max_rows: int,
) -> bool:
    """Whether the fused MLP kernel takes a model: fields' widths (0: a wide part only), widths of
    its layers, dots of a cross network, columns of FM, rows of a batch's ids, of the largest table.
    """

def fused_mlp_microseconds(
    dims: Sequence[int],
    columns: Sequence[int],
    num_shifts: int,
    has_cross: bool,
    num_fm: int,
    num_ids: int,
    max_rows: int,
    samples: int,
) -> float:
    """About how long the fused MLP kernel takes for a batch; a model as for `fused_mlp_fits`.

    ValueError where it does not fit.
    """

def fused_wave_samples(compute_capability_major: int, multiprocessors: int) -> int:
    """The largest batch of the kernels for small batches on such a GPU; 0: it has none."""

@type_check_only
class FusedMlpPlan(TypedDict):
    """csrc/kernels/fused/plan.h and mlp/smem_layout.h have the terms."""

    weights: NDArray[np.uint16]
    vectors: NDArray[np.float32]
    x_columns: list[int]
    x_chunks: list[int]
    first_extra: list[int]
    tile: int

class FusedMlpModel:
    """What the kernel computes but for the lookup: w [n, k] and bias [n] of each layer, the first
    with its extras last; `shifts` of the cross network; the head's weights.
    """

    def __init__(
        self,
        layers: Sequence[tuple[NDArray[np.float32], NDArray[np.float32] | None]],
        shifts: Sequence[float],
        has_cross: bool,
        head: NDArray[np.float32],
        bias: float,
        num_ids: int,
    ) -> None: ...
    def plan(self, slots: Sequence[CudaSlot], precision: str) -> FusedMlpPlan:
        """For tests. ValueError where the model does not fit."""

def fused_cross_fits(
    dims: Sequence[int], num_cross: int, columns: Sequence[int], num_ids: int, max_rows: int
) -> bool:
    """Whether the fused cross kernel takes a model with `num_cross` cross layers beside deep layers
    of `columns` columns; the rest as for `fused_mlp_fits`.
    """

@type_check_only
class FusedCrossPersistentPlan(TypedDict):
    """Of one CTA; csrc/kernels/fused/cross_persistent/smem_layout.h has the terms."""

    stages: list[tuple[int, int, int, int]]
    ring_bytes: int
    bytes: int
    scratch_bytes: int

def fused_cross_persistent_plan(
    dims: Sequence[int], num_cross: int, columns: Sequence[int], num_ids: int, max_rows: int
) -> FusedCrossPersistentPlan | None:
    """For tests; as for `fused_cross_fits`. None where the persistent kernel does not take it."""

@type_check_only
class FusedCrossPlan(TypedDict):
    """csrc/kernels/fused/cross/smem_layout.h has the terms."""

    weights: NDArray[np.uint16]
    vectors: NDArray[np.float32]
    x_columns: list[int]
    x_chunks: list[int]
    zero_chunks: list[int]
    cross_tile: int
    deep_tile: int
    stages: list[tuple[int, int, int, int]]
    smem: dict[str, int]

class FusedCrossModel:
    """What the kernels compute but for the lookup: w [n, k] and bias [n] of each cross layer and
    of each deep layer, the head's weights of both.
    """

    def __init__(
        self,
        cross: Sequence[tuple[NDArray[np.float32], NDArray[np.float32] | None]],
        cross_head: NDArray[np.float32],
        deep: Sequence[tuple[NDArray[np.float32], NDArray[np.float32] | None]],
        deep_head: NDArray[np.float32],
        bias: float,
        num_ids: int,
    ) -> None: ...
    def plan(self, slots: Sequence[CudaSlot], precision: str) -> FusedCrossPlan:
        """For tests. ValueError where the model does not fit."""

def fused_cross_fp16x3_fits(
    dims: Sequence[int], num_cross: int, columns: Sequence[int], num_ids: int, max_rows: int
) -> bool:
    """Whether the float32 kernel takes a model; as for `fused_cross_fits`."""

@type_check_only
class FusedCrossFp16x3Plan(TypedDict):
    """csrc/kernels/fused/cross_fp16x3/smem_layout.h has the terms. Groups and fields: address of a
    table, rows, bytes of a row, oov row (-1: none), row of the ids.
    """

    weights: NDArray[np.uint16]
    vectors: NDArray[np.float32]
    groups: list[tuple[int, int, int, int, int]]
    fields: list[tuple[int, int, int, int, int]]
    stages: list[tuple[int, int, int, int]]
    x_strips: int
    h_strips: list[int]
    cross_tile: int
    deep_tile: int
    smem: dict[str, int]
    weight_bytes: int
    scratch_bytes: int

def fused_cross_fp16x3_plan(
    model: FusedCrossModel, slots: Sequence[CudaSlot]
) -> FusedCrossFp16x3Plan:
    """For tests: slot f's table is at address (f + 1) 2^32. ValueError where it does not fit."""

class CudaProgram:
    """A program on one GPU; only in a build with CUDA. Weights and steps are added, then `build`.

    RuntimeError: CUDA failed; DeviceMemoryError: the GPU has too little memory.
    """

    def __init__(
        self, device: int, precision: str, max_rows: int, weight_bytes: int, arena_bytes: int
    ) -> None: ...
    def add_weight(self, kind: str, values: NDArray[np.float32] | NDArray[np.uint8]) -> int:
        """Copy a weight [rows, columns] to the device; its number. Of kind "raw" are bytes, which
        stay as they are; they begin at a multiple of 256.
        """
    def add_field_ids(self, fields: Sequence[tuple[int, int, int, int]]) -> None:
        """The ids of all fields, as for `rows_of_ids`: the first kernel makes rows of them."""
    def add_lookup(
        self,
        slots: Sequence[CudaSlot],
        dense: Sequence[CudaDenseSlot],
        out: ArenaView | None,
        fm: ArenaView | None,
        wide: ArenaView | None,
    ) -> int:
        """The place of the lookup's counters in a batch's report."""
    def add_load_dense(self, out: ArenaView) -> None: ...
    def add_elementwise(
        self,
        name: str,
        inputs: Sequence[ArenaView],
        weights: Sequence[int],
        sizes: Sequence[int],
        out: ArenaView,
    ) -> None:
        """A step by its name in csrc/kernels/elementwise/steps.cu."""

    def add_product(self, step: ProductStep) -> None: ...
    def add_mapped_product(
        self,
        step: ProductStep,
        sources: Sequence[MapSource],
        rows: ProductRows,
        kernels: Sequence[tuple[LinearConfig, bytes]],
    ) -> None:
        """A product whose epilogue is an expression of further operands, by kernels compiled for
        it: each one's tiles and cubin (`linear_configs`).
        """
    def add_chain(
        self,
        inputs: Sequence[ArenaView],
        products: Sequence[ChainProduct],
        cubin: bytes,
        shared_bytes: int,
        ctas: int,
        rows: Sequence[int],
        steps: int,
    ) -> None:
        """A chain of products in the place of the last `steps` steps, by a kernel compiled for it,
        of which `ctas` share a tile; `rows`: the batches that run so, all others run the steps.
        """

    def add_tensor(
        self,
        op: TensorOp,
        inputs: Sequence[ArenaView],
        weights: Sequence[int],
        operands: Sequence[TensorOperand],
        out: ArenaView,
    ) -> None:
        """A generic operation; operands read the inputs and then the weights, which are numbers."""

    def add_compiled(
        self,
        cubin: bytes,
        kernel: str,
        threads: int,
        shared_bytes: int,
        samples_a_block: int,
        reads: Sequence[ArenaView],
        writes: Sequence[ArenaView],
        weights: Sequence[int],
    ) -> None:
        """A kernel compiled at load, with the one parameter of csrc/jit/compiled_params.h; its grid
        has a block for each `samples_a_block` samples.
        """

    def add_head(self, parts: Sequence[HeadPart], bias: float, out: ArenaView) -> None: ...
    def add_fused_mlp(
        self, slots: Sequence[CudaSlot], model: FusedMlpModel, above: int = 0
    ) -> None:
        """A fused forward kernel in place of all steps where batches are small, in buckets of more
        than `above` samples; after the steps.
        """
    def add_fused_cross(
        self, slots: Sequence[CudaSlot], model: FusedCrossModel, above: int = 0
    ) -> None:
        """The same for a model with cross layers; in fp32 only where the arena is large enough to
        work in.
        """
    @property
    def fused_above(self) -> int:
        """Batches of no more samples run in steps all the same."""
    @property
    def fused_up_to(self) -> int:
        """Batches up to so many samples run as one fused kernel; 0: none does."""
    @property
    def buckets_in_turn(self) -> list[int]:
        """Rows of the buckets in which branches of the plan run one after the other: BatchRing
        found, when it was made, that this takes no longer than side by side.
        """
    def build(
        self,
        plan: Plan,
        graphs: bool = True,
        delay_seed: int = 0,
        refused_step: int = -1,
        branches: Literal["measured", "side_by_side", "in_turn"] = "measured",
    ) -> None:
        """Run every kernel once and capture the graphs; the last three arguments are for tests."""
    def poison(self) -> None:
        """For tests: fill the arena with NaN."""
    @property
    def device_bytes(self) -> int: ...

class BatchRing:
    """Batches on their way through a program; what comes back of ids is None where none was bad,
    else the counters of all lookups (counts start at -1).
    """

    def __init__(
        self,
        program: CudaProgram,
        num_slots: int,
        field_rows: Sequence[int],
        num_dense: int,
        num_threads: int = 0,
    ) -> None: ...
    def submit(
        self,
        ids: Sequence[Ids] | Ids,
        dense: Sequence[NDArray[np.float32]] | NDArray[np.float32],
        size: int,
        use_oov: bool,
        logits: bool,
    ) -> int:
        """Enqueue a batch; the slot to collect it from.

        Page-locked ids [F, B] and dense [N, B] are read where they lie: they must stay as they are
        until the slot is collected. All others are packed at once.
        """
    def run(
        self,
        ids: Sequence[Ids] | Ids,
        dense: Sequence[NDArray[np.float32]] | NDArray[np.float32],
        out: NDArray[np.float32],
        max_rows: int,
        use_oov: bool,
        logits: bool,
    ) -> tuple[list[float], list[NDArray[np.int64]]]:
        """Fill out [B], of any B, in batches of up to max_rows; the ring must be empty.

        Seconds of each batch, and the counters of those that had bad ids.
        """
    def collect(self, slot: int, out: NDArray[np.float32]) -> NDArray[np.int64] | None:
        """Wait for a slot and take its scores or logits [B]."""
    def run_in_place(
        self,
        ids: int,
        ids_stride: int,
        ids_are_int64: bool,
        dense: int,
        dense_stride: int,
        out: int,
        batch: int,
        use_oov: bool,
        stream: int,
    ) -> NDArray[np.int64] | None:
        """Score a batch on the device, on `stream` after what that holds so far, and wait for it.

        Device addresses, 0 for what the model has not; strides in numbers from one row to the next.
        ValueError for a stream that is being captured into a graph.
        """
    def start_in_place(
        self,
        ids: int,
        ids_stride: int,
        ids_are_int64: bool,
        dense: int,
        dense_stride: int,
        out: int,
        batch: int,
        use_oov: bool,
        stream: int,
    ) -> None:
        """`run_in_place` without the wait; the batch's memory must stay until it is finished."""
    def finish_in_place(self) -> NDArray[np.int64] | None:
        """Wait for all batches that were started, and take their counters."""
    def take_seconds(self) -> tuple[float, float, float]:
        """Copy in, compute, copy out on the device, of batches collected since the last call."""
    @property
    def device_bytes(self) -> int: ...

class TensorScorer:
    """Scores tensors that `tensors` finds, on their library's current stream, in few calls."""

    def __init__(
        self,
        ring: BatchRing,
        tensors: DeviceTensors,
        caller: OneCaller,
        use_oov: bool,
        make_scores: Callable[[int], tuple[Any, int]],
        inference_mode: Callable[[], bool],
    ) -> None:
        """`make_scores(B)` gives an array [B] and its address; it is called ahead, while the GPU
        works, for a next call of the same B on the same stream, in the same `inference_mode()`.
        """
    def score(self, ids: Any, dense: Any) -> tuple[Any, float, NDArray[np.int64] | None] | None:
        """Scores, the call's seconds, and the counters, as `BatchRing.run_in_place` has them. None:
        nothing was done, since nothing was found or B is none of this ring's.
        """
    def close(self) -> None:
        """Let go of the ring and its memory, whoever still holds this."""

def inject_cuda_failure(call: int, lost: bool = False) -> bool:
    """For tests: the `call`-th checked CUDA call from now on is not made and fails as if memory
    were short, or if `lost` it and all that follow as if the device were lost; 0: none. Returns
    whether the failure injected before is still to come.
    """

class PageScorer:
    """Scores units whose ids come as a file stores them; any threads may call it at one time."""

    def __init__(
        self,
        program: CudaProgram,
        ring: BatchRing,
        num_fields: int,
        num_dense: int,
        num_slots: int,
    ) -> None:
        """`num_slots` units are on the device at a time, whose memory grows to what they need."""
    def score(
        self,
        ids: ColumnPages,
        memory: NDArray[np.uint8],
        dense: NDArray[np.float32],
        out: NDArray[np.float32],
        use_oov: bool,
    ) -> tuple[NDArray[np.int64] | None, list[float], tuple[float, float, float, float]]:
        """Fill out [B] from ids [F] as `read_pages` left them in `memory`, and dense [N, B].

        The counters (None: no bad ids), seconds of each batch, seconds of copying in, unpacking,
        computing, copying out. DeviceMemoryError where the device has no room for the unit;
        RuntimeError that tells which page is corrupt or holds nulls.
        """
    def decode(self, ids: ColumnPages, memory: NDArray[np.uint8], out: NDArray[np.uint8]) -> str:
        """For tests: fill out, the bytes of [F, B], with the ids alone; why a page is refused, if
        one is. Then out may hold anything.
        """
    @property
    def device_bytes(self) -> int: ...

class Graph:
    """Steps in program order over named buffers; hazards (RAW, WAR, WAW) become edges."""

    def __init__(self) -> None: ...
    @property
    def num_steps(self) -> int: ...
    def add_buffer(self, name: str, bytes: int, external: bool = False) -> int:
        """Add a buffer; an external one is the caller's memory, before and after the steps."""
    def add_view(self, parent: int, offset: int, bytes: int) -> int:
        """Add bytes [offset, offset + bytes) of another buffer as a buffer of its own."""
    def add_step(
        self, name: str, reads: Sequence[int], writes: Sequence[int], cost: float = 1.0
    ) -> int:
        """Add a step after all others; `cost` in any unit.

        ValueError: an unknown buffer, or a read of one that is not external and not written before.
        """
    def edges(self) -> list[tuple[int, int]]:
        """All pairs (earlier, later) of steps that must run in this order, ascending."""

class PlannedStep:
    """A step, its stream, the events it waits for, the event it records (-1: none)."""

    @property
    def step(self) -> int: ...
    @property
    def stream(self) -> int: ...
    @property
    def waits(self) -> list[int]: ...
    @property
    def record(self) -> int: ...

class Plan:
    """Steps in launch order; `str()` of it is readable."""

    @property
    def steps(self) -> list[PlannedStep]: ...
    @property
    def num_events(self) -> int: ...
    @property
    def num_streams(self) -> int: ...

class BufferPlan:
    """Offsets in one arena by buffer or view; -1: external, or no step touches it."""

    @property
    def offsets(self) -> list[int]: ...
    @property
    def arena_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int:
        """Bytes of the same buffers without reuse."""

def plan(graph: Graph, num_streams: int, policy: Policy) -> Plan:
    """Order the steps and give them streams (1 to 64) and events; the same for the same graph."""

def plan_buffers(graph: Graph, plan: Plan, alignment: int = 256) -> BufferPlan:
    """Place the buffers that are not external; never reuses one before its last access is done."""

def pack_ids(
    ids: Sequence[Ids] | Ids, to_int64: bool = False, num_threads: int = 0
) -> NDArray[np.int32] | NDArray[np.int64]:
    """For tests: ids [F][B] as they travel to a device, [F, B]; 0 threads takes up to 16.

    An int64 that 32 bits cannot hold becomes some negative number.
    """

class LinearParams:
    """A product with its epilogue (csrc/kernels/gemm/linear.h); device addresses, 0: none."""

    rows: int
    n: int
    k: int
    x: int
    ldx: int
    w: int
    bias: int
    out: int
    ldo: int
    relu_begin: int
    relu_end: int
    cross_begin: int
    cross_end: int
    x0: int
    ldx0: int
    xl: int
    ldxl: int
    head_begin: int
    head_end: int
    head: int
    head_partial: int
    ld_partial: int
    behind_other: bool

    def __init__(self) -> None: ...

class LinearConfig:
    """How a product is cut into tiles of `rows` x `tile_n`.

    in_turn: two warpgroups take tiles in turn, instead of a tile together.
    split: CTAs that share a tile, each with a part of k: 1, 2, 4, or 8 of 128 rows; 1 in turn.
    rows: 128, or 64 of one warpgroup.
    """

    def __init__(
        self, tile_n: int, in_turn: bool = False, split: int = 1, rows: int = 128
    ) -> None: ...
    @property
    def tile_n(self) -> int: ...
    @property
    def in_turn(self) -> bool: ...
    @property
    def split(self) -> int: ...
    @property
    def rows(self) -> int: ...

def prepared_weight_bytes(precision: str, n: int, k: int) -> int:
    """Bytes of a weight [n, k] as `linear` wants it."""

def prepare_linear_weight(
    precision: str, w: int, n: int, k: int, prepared: int, stream: int = 0
) -> None:
    """Enqueue the preparation of w [n, k] float32; addresses of device memory."""

def head_partials(precision: str, rows: int, n: int, k: int) -> int:
    """How many parts of the head's dot product `linear` writes for a row."""

def linear_config(precision: str, rows: int, n: int, k: int, places: int = 1) -> LinearConfig:
    """How a product, or so many that are one, is cut into tiles."""

def linear_microseconds(precision: str, rows: int, n: int, k: int) -> float:
    """What the model of a product's time, by which its tiles are chosen, says that it takes."""

def all_linear_configs(precision: str) -> list[LinearConfig]:
    """All that `linear_config` chooses from, not split."""

def linear(
    precision: str,
    params: LinearParams,
    stream: int = 0,
    tiles: LinearConfig | None = None,
) -> None:
    """Enqueue the product; never synchronises, never allocates. `tiles`, to compare them: one of
    `all_linear_configs`, which a GPU must have, or the same split.
    """
