"""Converting text files: cell by cell against Python's csv, broken lines, damaged files."""

import csv
import gzip
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from jobs.convert import command
from pipeline.data.convert import ConvertOptions, convert
from pipeline.data.parquet_layouts import raw_schema, read_layout
from pipeline.errors import ConfigError, ContractError

INTEGERS = ["1", "-2", "", "0", "1382", "4", "15", "2", "181", "1", "2", "", "2147483647"]
STRINGS = ["68fd1e64", "", *(f"{i:08x}" for i in range(24))]
CRITEO_LINE = "\t".join(["0", *INTEGERS, *STRINGS])
AVAZU_HEADER = ",".join(raw_schema("avazu").names)
AVAZU_LINE = ",".join(
    [
        *("18446744073709551615", "1", "14102100", "1005", "0", *(["1fbe01fe"] * 9), "1", "0"),
        *("15704", "320", "50", "1722", "0", "35", "-1", "79"),
    ]
)


def _criteo(tmp_path, text, name="train.txt", **changes):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return _convert("criteo", [path], tmp_path / "out", **changes)


def _avazu(tmp_path, text, name="train.csv", **changes):
    path = tmp_path / name
    path.write_text(text)
    return _convert("avazu", [path], tmp_path / "out", **changes)


def _convert(dataset, inputs, output, **changes):
    options = {"dataset": dataset, "inputs": inputs, "output": output, "block_bytes": 1024}
    convert(ConvertOptions(**options | changes))
    return pq.read_table(output)


def _real(dataset, path, output, **changes):
    return _convert(dataset, [path], output, block_bytes=1 << 17, **changes)


def _refused(tmp_path, convert_text, text, match, **more):
    with pytest.raises(ContractError, match=match):
        convert_text(tmp_path, text, **more)
    assert not list((tmp_path / "out").glob("**/*"))


def _line(column, value):
    """The Criteo line with one field replaced."""
    fields = CRITEO_LINE.split("\t")
    fields[raw_schema("criteo").names.index(column) - 1] = value
    return "\t".join(fields)


def test_real_criteo_rows_cell_by_cell(tmp_path, criteo_tsv):
    table = _real("criteo", criteo_tsv, tmp_path, rows_per_shard=1000, row_group_rows=300)
    shards = sorted(tmp_path.iterdir())
    assert [pq.read_metadata(s).num_rows for s in shards] == [1000] * 8 + [184]
    assert table.schema.equals(raw_schema("criteo"))
    with criteo_tsv.open() as file:
        rows = list(csv.reader(file, delimiter="\t"))
    expected = [
        [index, *(int(v) if v else None for v in row[:14]), *(v or None for v in row[14:])]
        for index, row in enumerate(rows)
    ]
    assert list(map(list, zip(*(c.to_pylist() for c in table.columns), strict=True))) == expected


def test_real_avazu_rows_cell_by_cell(tmp_path, avazu_csv):
    table = _real("avazu", avazu_csv, tmp_path, rows_per_shard=1111, row_group_rows=500)
    assert len(list(tmp_path.iterdir())) == 9
    assert table.schema.equals(raw_schema("avazu"))
    with avazu_csv.open() as file:
        rows = list(csv.DictReader(file))
    for name in table.column_names:
        is_text = pa.types.is_string(table.schema.field(name).type)
        expected = [row[name] if is_text else int(row[name]) for row in rows]
        assert table[name].to_pylist() == expected, name


@pytest.mark.parametrize("rows", [1, 19, 111])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "open"])
def test_line_ends(tmp_path, rows, ending, last):
    text = ending.join([CRITEO_LINE] * rows) + (ending if last else "")
    table = _criteo(tmp_path, text)
    assert table["row_id"].to_pylist() == list(range(rows))
    assert table["I13"].to_pylist() == [2**31 - 1] * rows
    assert table["C26"].to_pylist() == ["00000017"] * rows
    assert table["I3"].null_count == table["C2"].null_count == rows


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_byte_order_mark_is_passed_over(tmp_path, packed):
    text = f"\ufeff{CRITEO_LINE}\n{CRITEO_LINE}\n".encode()
    assert len(_criteo(tmp_path, text)) == 2
    broken = text + b"x"
    broken = gzip.compress(broken) if packed else broken
    with pytest.raises(ContractError, match=r":3: has 1 fields"):
        _criteo(tmp_path, broken, overwrite=True)


def test_files_without_labels(tmp_path):
    table = _criteo(tmp_path, CRITEO_LINE.partition("\t")[2] + "\n", name="test.txt")
    assert table.schema.equals(raw_schema("criteo", with_label=False))
    assert read_layout(table.schema)["label"] is None


def test_avazu_columns_in_any_order_and_large_ids(tmp_path):
    names, values = AVAZU_HEADER.split(","), AVAZU_LINE.split(",")
    text = ",".join([*names[2:], names[0]]) + "\n" + ",".join([*values[2:], values[0]]) + "\n"
    table = _avazu(tmp_path, text, name="test.csv")
    assert table.schema.equals(raw_schema("avazu", with_label=False))
    assert table["id"].to_pylist() == [2**64 - 1] and table["C20"].to_pylist() == [-1]


def test_row_ids_run_over_all_files(tmp_path):
    first, second = tmp_path / "day_0", tmp_path / "day_1.gz"
    first.write_text(f"{CRITEO_LINE}\n" * 19)
    second.write_bytes(gzip.compress(f"{_line('I1', '77')}\n".encode() * 111))
    table = _convert("criteo", [first, second], tmp_path / "out", rows_per_shard=50)
    assert table["row_id"].to_pylist() == list(range(130))
    assert table["I1"].to_pylist() == [1] * 19 + [77] * 111
    assert len(list((tmp_path / "out").iterdir())) == 3


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("number", [1, 2, 777, 1000], ids=["first", "early", "late", "last"])
def test_a_broken_line_is_named_wherever_it_is(tmp_path, number, packed):
    lines = [CRITEO_LINE] * 1000
    lines[number - 1] = _line("I3", "abc")
    text = "\n".join(lines).encode()
    match = rf"train\.txt:{number}: field I3: 'abc' is not an integer$"
    _refused(tmp_path, _criteo, gzip.compress(text) if packed else text, match)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (CRITEO_LINE + "\t1", r":5: has 41 fields, expected 40"),
        (CRITEO_LINE.rpartition("\t")[0], r":5: has 39 fields, expected 40"),
        ("", r":5: the line is empty"),
        (_line("label", "2"), r":5: field label: '2' is not 0 or 1"),
        (_line("label", ""), r":5: field label: '' is not 0 or 1"),
        (_line("I13", "2147483648"), r":5: field I13: '2147483648' is outside int32"),
        (_line("I1", "1.5"), r":5: field I1: '1\.5' is not an integer"),
        (_line("I1", "0x1F"), r":5: field I1: '0x1F' is not an integer"),
        (_line("I2", " 7"), r":5: field I2: ' 7' is not an integer"),
        (_line("I2", "7 "), r":5: field I2: '7 ' is not an integer"),
        (_line("I2", "9" * 5000), r":5: field I2: '9{60}\.\.\.' is outside int32"),
        (_line("label", "01"), r":5: field label: '01' is not 0 or 1"),
        (_line("C1", "0" * 70_000), r":5: the line has more than 65,536 bytes"),
        (_line("C26", "68fd1e6"), r":5: field C26: '68fd1e6' is not 8 hex digits"),
        (_line("C1", "68fd1e6g"), r":5: field C1: '68fd1e6g' is not 8 hex digits"),
        (_line("C1", "x" * 99), r":5: field C1: 'x{60}\.\.\.' is not 8 hex digits"),
    ],
)
@pytest.mark.parametrize("after", [0, 500])
def test_what_is_wrong_with_a_criteo_line(tmp_path, line, match, after):
    lines = [CRITEO_LINE] * 4 + [line] + [CRITEO_LINE] * (after or 1)
    _refused(tmp_path, _criteo, "\n".join(lines) + "\n", match)


def test_bytes_that_are_no_text(tmp_path):
    line = CRITEO_LINE.encode()
    text = line + b"\n" + line.replace(b"68fd1e64", b"68fd1e\xff4") + b"\n"
    _refused(tmp_path, _criteo, text, r"train\.txt:2: is not valid utf-8")


@pytest.mark.parametrize(
    ("column", "value", "match"),
    [
        ("id", "", r":3: field id: '' is empty"),
        ("id", "18446744073709551616", r":3: field id: '18446744073709551616' is outside uint64"),
        ("id", "0x1F", r":3: field id: '0x1F' is not an integer"),
        ("C20", " 7", r":3: field C20: ' 7' is not an integer"),
        ("click", "yes", r":3: field click: 'yes' is not 0 or 1"),
        ("device_ip", "1", r":3: field device_ip: '1' is not 8 hex digits"),
        ("C14", "15,704", r":3: has 25 fields, expected 24"),
    ],
)
def test_what_is_wrong_with_an_avazu_line(tmp_path, column, value, match):
    values = AVAZU_LINE.split(",")
    values[raw_schema("avazu").names.index(column)] = value
    text = "\n".join([AVAZU_HEADER, AVAZU_LINE, ",".join(values), AVAZU_LINE])
    _refused(tmp_path, _avazu, text, match)


@pytest.mark.parametrize(
    ("header", "match"),
    [
        (
            AVAZU_HEADER.replace("site_id", "siteid"),
            r"unknown column 'siteid' \(nearest is site_id",
        ),
        (AVAZU_HEADER.replace(",C21", ""), r":1: header: missing column 'C21'"),
        (AVAZU_HEADER + ",C21", r":1: header: repeated column 'C21'"),
        (AVAZU_LINE, r":1: header: unknown column '18446744073709551615'.* and \d+ more"),
    ],
)
def test_what_is_wrong_with_an_avazu_header(tmp_path, header, match):
    _refused(tmp_path, _avazu, f"{header}\n{AVAZU_LINE}\n", match)


def test_a_first_line_of_another_format(tmp_path):
    _refused(tmp_path, _criteo, "a,b,c\n", r"train\.txt:1: has 1 tab-separated fields, expected 40")


def test_empty_files(tmp_path):
    _refused(tmp_path, _criteo, "", r"train\.txt: the file is empty")
    _refused(tmp_path, _criteo, gzip.compress(b""), r"train\.txt: the file is empty")
    _refused(tmp_path, _avazu, AVAZU_HEADER + "\n", "holds a header and no rows")


@pytest.mark.parametrize("kept", [0.5, 0.999])
@pytest.mark.parametrize("block_bytes", [1024, 1 << 20])
def test_truncated_gzip(tmp_path, kept, block_bytes):
    lines = "".join(f"{_line('C3', f'{i * 2654435761 % 2**32:08x}')}\n" for i in range(2000))
    packed = gzip.compress(lines.encode())
    match = r"train\.txt: the gzip file is truncated or damaged"
    cut = packed[: int(len(packed) * kept)]
    _refused(tmp_path, _criteo, cut, match, block_bytes=block_bytes)


def test_damaged_gzip(tmp_path):
    packed = bytearray(gzip.compress(f"{CRITEO_LINE}\n".encode() * 2000))
    packed[len(packed) // 2] ^= 0xFF
    _refused(tmp_path, _criteo, bytes(packed), r"train\.txt: the gzip file is truncated or damaged")


def test_inputs_that_cannot_be_used(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.txt is not a file"):
        _convert("criteo", [tmp_path / "absent.txt"], tmp_path / "out")
    labelled, plain = tmp_path / "train.txt", tmp_path / "test.txt"
    labelled.write_text(CRITEO_LINE)
    plain.write_text(CRITEO_LINE.partition("\t")[2])
    with pytest.raises(ConfigError, match=r"test\.txt has no label and .*train\.txt has one"):
        _convert("criteo", [labelled, plain], tmp_path / "out")


def test_a_filled_output_is_refused_and_kept_when_a_new_conversion_fails(tmp_path):
    before = _criteo(tmp_path, f"{CRITEO_LINE}\n" * 19)
    with pytest.raises(ConfigError, match="not empty"):
        _criteo(tmp_path, f"{CRITEO_LINE}\n")
    with pytest.raises(ContractError):
        _criteo(tmp_path, f"{CRITEO_LINE}\n" * 999 + "x", overwrite=True)
    assert pq.read_table(tmp_path / "out") == before
    assert len(_criteo(tmp_path, f"{CRITEO_LINE}\n", overwrite=True)) == 1


def test_memory_holds_a_part_of_the_file(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text(f"{CRITEO_LINE}\n" * 100_000)
    options = ConvertOptions(
        dataset="criteo",
        inputs=[path],
        output=tmp_path / "out",
        block_bytes=1 << 16,
        row_group_rows=1000,
    )
    held = []
    convert(options, on_rows=lambda _: held.append(pa.total_allocated_bytes()))
    # The whole file's rows take about as much as its text, 23 MB; a few blocks are in flight.
    assert max(held) < path.stat().st_size / 3


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_line_without_end_is_not_kept(tmp_path, packed):
    path = tmp_path / "train.txt"
    with gzip.open(path, "wb", 1) if packed else path.open("wb") as file:
        file.write(f"{CRITEO_LINE}\n".encode() * 2)
        for _ in range(300):
            file.write(b"7" * (1 << 20))
    code = """
import resource, sys
from pathlib import Path
from pipeline.data.convert import ConvertOptions, convert
from pipeline.errors import ContractError
most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = most()
try:
    convert(ConvertOptions(dataset="criteo", inputs=[sys.argv[1]], output=sys.argv[1] + ".out"))
except ContractError as error:
    print(error, most() - before, sep="|")
"""
    run = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    message, megabytes = run.stdout.split("|")
    assert message == f"{path}:3: the line has more than 65,536 bytes"
    assert int(megabytes) < 250  # blocks of 8 MB in flight


def test_command_line(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text(f"{CRITEO_LINE}\n" * 19)
    arguments = [str(path), "-o", str(tmp_path / "out"), "--dataset", "criteo"]
    result = CliRunner().invoke(command, [*arguments, "--rows-per-shard", "10"])
    assert result.exit_code == 0 and result.output.startswith("19 rows in 2 shards")
    assert isinstance(CliRunner().invoke(command, arguments).exception, ConfigError)


def test_keys_go_on_behind_those_of_another_command(tmp_path):
    text = f"{CRITEO_LINE}\n" * 19
    for name in ("day_0", "day_1"):
        (tmp_path / name).write_text(text)
    _convert("criteo", [tmp_path / "day_0"], tmp_path / "rows/a", rows_per_shard=7)
    after = {"row_ids_after": [tmp_path / "rows"]}
    table = _convert("criteo", [tmp_path / "day_1"], tmp_path / "rows/b", **after)
    assert table["row_id"].to_pylist() == list(range(19, 38))
    table = _convert("criteo", [tmp_path / "day_1"], tmp_path / "c", row_ids_from=1000, **after)
    assert table["row_id"].to_pylist() == list(range(1000, 1019))


def test_keys_that_cannot_be_told_are_refused(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match=r"holds no \*.parquet file"):
        _criteo(tmp_path, CRITEO_LINE, row_ids_after=[tmp_path / "none"])
    pq.write_table(pa.table({"x": [1]}), tmp_path / "none/x.parquet")
    with pytest.raises(ConfigError, match="does not tell its highest row_id"):
        _criteo(tmp_path, CRITEO_LINE, row_ids_after=[tmp_path / "none"])
    with pytest.raises(ConfigError, match="have a key of their own"):
        _avazu(tmp_path, f"{AVAZU_HEADER}\n{AVAZU_LINE}\n", row_ids_from=3)
