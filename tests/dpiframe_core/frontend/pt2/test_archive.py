"""Archives of torch.export: the program that comes back computes what the model does; what is
damaged, unsafe or unknown is refused, and nothing of it is run."""

from __future__ import annotations

import json
import struct
import zipfile

import pytest
import torch
from archive_models import BATCH, Matrix, Tower, edited, members, packed, save, tower_inputs
from safetensors.torch import load_file
from torch.export import Dim

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.pt2.archive import ArchivedInput, read_archive


@pytest.fixture(scope="module")
def tower(tmp_path_factory):
    torch.manual_seed(1)
    model = Tower()
    return model, save(tmp_path_factory.mktemp("tower") / "tower.pt2", model, (tower_inputs(),))


@pytest.fixture
def copy(tower, tmp_path):
    """The tower's archive, to be changed."""
    path = tmp_path / "copy.pt2"
    path.write_bytes(tower[1].read_bytes())
    return path


def refusal(path, text):
    with pytest.raises(ModelImportError, match=text) as error:
        read_archive(path)
    assert str(error.value).startswith(f"{path}: ")
    return str(error.value)


def refused_edit(path, end, edit, text):
    return refusal(edited(path, end, edit), text)


def test_programs_of_other_libraries_give_their_probabilities(shared_exports):
    paths = sorted(shared_exports.rglob("*.pt2"))
    assert len(paths) == 34
    for path in paths:
        found = read_archive(path)
        stored = load_file(path.with_suffix(".safetensors"))
        # Some have weights of float64 and a graph of float32, which torch does not run either.
        found.module.float()
        result = found.module(*(stored[f"input/{put.name}"] for put in found.inputs))[0]
        # The references of 7 are of float64, the others of float32, as is the program.
        expected = stored["probability"].double().reshape(-1)
        torch.testing.assert_close(result.double().reshape(-1), expected, rtol=0, atol=5e-6)
        assert found.outputs == ("output",) and found.max_batch == 1 << 20, path


def test_a_dict_of_inputs_and_two_outputs(tower):
    model, path = tower
    found = read_archive(path)
    assert found.inputs == (
        ArchivedInput("C0", torch.int64, (None,), True),
        ArchivedInput("class", torch.int64, (None,), True),
        ArchivedInput("label", torch.float32, (None,), False),
    )
    assert found.outputs == ("score", "parts")
    expected = model(tower_inputs())
    for result, name in zip(found.module(*tower_inputs().values()), found.outputs, strict=True):
        torch.testing.assert_close(result, expected[name], rtol=0, atol=0)


def test_weights_have_their_names_types_and_shared_memory(tower):
    model, path = tower
    module = read_archive(path).module
    own = dict(module.named_parameters(remove_duplicate=False))
    own |= dict(module.named_buffers(remove_duplicate=False))
    expected = model.state_dict() | {"passing": model.passing}
    renamed = {"tables.class_.weight": "tables.class.weight"}  # `class` is no attribute in Python
    found = {renamed.get(name, name): tensor for name, tensor in own.items()}
    assert expected.keys() < found.keys()  # and a constant of forward
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].detach(), tensor, rtol=0, atol=0)
    assert found["tied.weight"].data_ptr() == found["first.weight"].data_ptr()
    assert found["high"].data_ptr() == found["low"].data_ptr() + 4 * 4
    reads = {node.meta["weight"] for node in module.graph.nodes if node.op == "get_attr"}
    assert expected.keys() < reads


def test_nodes_tell_module_and_source(tower):
    nodes = read_archive(tower[1]).module.graph.nodes
    calls = [node for node in nodes if node.target == torch.ops.aten.linear.default]
    assert [node.meta["module_path"] for node in calls] == ["first", "tied"]
    for node in calls:
        file, line = node.meta["source"].rsplit(":", 1)
        assert file.endswith("archive_models.py") and int(line) > 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch", [Dim("batch", min=3, max=111), Dim.AUTO, None])
def test_a_matrix_of_any_float_type_and_batch(tmp_path, dtype, batch):
    model, x = Matrix(dtype), torch.rand(19, 3).to(dtype)
    found = read_archive(save(tmp_path / "matrix.pt2", model, (x,), batch))
    assert found.inputs == (ArchivedInput("x", dtype, (19 if batch is None else None, 3), True),)
    expected = (3, 111) if isinstance(batch, Dim) else (2, None) if batch else (None, None)
    assert (found.min_batch, found.max_batch) == expected
    torch.testing.assert_close(found.module(x)[0], model(x), rtol=0, atol=0)


class Arguments(torch.nn.Module):
    def forward(self, a, b, *rest, flag=True, **more):
        return a["x"] + b["x"] + rest[0][1] + more["last"]


def test_names_of_arguments_in_all_kinds_of_containers(tmp_path):
    a, b, c, d, e = (torch.rand(BATCH) for _ in range(5))
    args, kwargs = ({"x": a}, {"x": b}, [c, d]), {"last": e, "flag": True}
    path = tmp_path / "arguments.pt2"
    torch.export.save(torch.export.export(Arguments(), args, kwargs), path)
    found = read_archive(path)
    names = ["a.x", "b.x", "rest_0.0", "rest_0.1", "last"]
    assert [put.name for put in found.inputs] == names
    assert [put.is_used for put in found.inputs] == [True, True, False, True, True]


def test_torch_before_2_9_pickled_weights(tmp_path, copy):
    path = tmp_path / "old.pt2"
    path.write_bytes(packed({"version": b"8", "serialized_exported_program.json": b"{}"}))
    refusal(path, "torch before 2.8.*torch 2.9 or later")
    copy.write_bytes(packed(members(copy) | {"tower/data/weights/model.pt": b""}))
    refusal(copy, "torch 2.8.*torch 2.9 or later")


def test_other_files(tmp_path):
    path = tmp_path / "model.pt2"
    refusal(path, "No such file")
    for data in (b"", b"PK", b"weights" * 99):
        path.write_bytes(data)
        refusal(path, "empty file|is no zip")
    torch.save(Matrix().state_dict(), path)
    refusal(path, "is no archive of torch.export.save")


def test_two_models_in_an_archive(copy):
    found = members(copy)
    copy.write_bytes(packed(found | {"tower/models/other.json": b"{}"}))
    refusal(copy, r"has 2 models \['model', 'other'\]")


def test_another_major_version_of_the_schema(copy):
    def edit(program):
        program["schema_version"]["major"] = 9
        del program["graph_module"]

    refused_edit(copy, "model.json", edit, "with export schema 9, only 8 can be read")


def weight_edit(name, **changes):
    def edit(content):
        entry = content["config"][name]
        entry["tensor_meta"] |= {k: v for k, v in changes.items() if k in entry["tensor_meta"]}
        entry |= {k: v for k, v in changes.items() if k in entry}

    return edit


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"use_pickle": True}, "weight unused: is pickled .* never read"),
        ({"dtype": 29}, "weight unused: type float8_e4m3fn is not supported"),
        ({"dtype": 99}, "weight unused: type of number 99"),
        ({"layout": 2}, "weight unused: layout sparse_csr is not supported; call to_dense"),
        ({"sizes": [{"as_int": 3}, {"as_int": 3}]}, "need 28 bytes, its file has 24"),
        ({"storage_offset": {"as_int": 2**60}}, "its file has 24"),
        ({"strides": [{"as_int": 2**62}, {"as_int": 2**62}]}, "its file has 24"),
        ({"strides": [{"as_int": -1}, {"as_int": 1}]}, "is no number of at least 0"),
        ({"strides": [{"as_int": 1}]}, "has 2 dimensions and 1 strides"),
        (
            {"sizes": [{"as_int": 2**40}, {"as_int": 2}], "strides": [{"as_int": 0}] * 2},
            "is a view of 24 bytes expanded to 8796093022208",
        ),
        ({"path_name": "../../../../etc/passwd"}, "has no tower/data/weights/../../../../etc"),
    ],
)
def test_weights_that_do_not_fit_their_bytes(copy, changes, text):
    refused_edit(copy, "weights_config.json", weight_edit("unused", **changes), text)


def test_a_weight_of_fake_tensors_has_no_bytes(copy):
    found = members(copy)
    config = json.loads(found["tower/data/weights/model_weights_config.json"])
    file = config["config"]["unused"]["path_name"]
    copy.write_bytes(packed(found | {f"tower/data/weights/{file}": b""}))
    refusal(copy, "its file has 0; export with real weights")


def test_a_weight_that_is_missing(copy):
    refused_edit(
        copy,
        "weights_config.json",
        lambda content: content["config"].pop("unused"),
        "has no weight unused",
    )


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("torch.ops.aten.save.default", "has no operator torch.ops.aten.save.default"),
        ("torch.ops.aten.from_file.default", "it reads files"),
        ("torch.ops.aten.set_.source_Tensor", "changes memory"),
        ("torch.ops.aten._foobar.default", "internal to torch"),
        ("torch.ops.aten.abs.out", "writes into an argument `out`"),
        ("torch.ops.aten.__class__.default", "has no operator"),
        ("torch.ops.aten.relu.default.__globals__", "is no operator of torch.ops.aten"),
        ("torch.ops.fbgemm.jagged_dense.default", "operators of other libraries"),
        ("torch.ops.higher_order.cond", "is a higher-order operator"),
        ("_operator.attrgetter", "is no operator of torch.ops.aten"),
        ("builtins.eval", "is no operator of torch.ops.aten"),
    ],
)
def test_operators_that_are_not_called(copy, target, text):
    def edit(program):
        nodes = program["graph_module"]["graph"]["nodes"]
        next(node for node in nodes if node["target"].endswith("relu.default"))["target"] = target

    message = refused_edit(copy, "model.json", edit, text)
    assert "a call in the model itself, " in message and "archive_models.py:" in message


def test_torch_no_grad_in_forward_is_a_higher_order_operator(tmp_path):
    class Frozen(torch.nn.Module):
        def forward(self, x):
            with torch.no_grad():
                x = x * 2
            return x + 1

    refusal(save(tmp_path / "f.pt2", Frozen(), (torch.rand(BATCH),)), "such as torch.no_grad")


def test_a_program_that_changes_its_buffers(tmp_path):
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count.add_(1)
            return x + self.count

    path = tmp_path / "counts.pt2"
    program = torch.export.export(Counts(), (torch.rand(BATCH),)).run_decompositions()
    torch.export.save(program, path)
    refusal(path, "output of kind buffer_mutation.*call model.eval")


def test_only_the_batch_is_dynamic(tmp_path):
    shapes = ({0: Dim.AUTO, 1: Dim.AUTO},)
    program = torch.export.export(torch.nn.ReLU(), (torch.rand(BATCH, 3),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "f.pt2")
    refusal(tmp_path / "f.pt2", "dimension 1 of input input is .* only the batch may be dynamic")


def node_edit(**changes):
    def edit(program):
        program["graph_module"]["graph"]["nodes"][3] |= changes

    return edit


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (node_edit(inputs=[]), "has no argument"),
        (node_edit(outputs=[]), "has 0 results, not 1"),
        (node_edit(outputs=[{"as_tensor": {"name": "embedding"}}]), "two values are named"),
        (node_edit(inputs=[{"name": "self", "arg": {"as_tensor": {"name": "later"}}, "kind": 1}]),
         "later is used, but nothing before computes it"),
        (node_edit(inputs=[{"name": "self", "arg": {"as_custom_obj": {}}, "kind": 1}]),
         "an argument of kind as_custom_obj"),
        (node_edit(inputs=[{"name": "self", "arg": {"as_int": 1, "as_bool": True}, "kind": 1}]),
         "must have exactly one key"),
        (node_edit(outputs="x"), "model.json is not as torch writes it: .*array"),
        (lambda program: program["graph_module"]["graph"]["nodes"].clear(), "nothing before"),
        (lambda program: program["graph_module"]["module_call_graph"].clear(), "has no signature"),
        (lambda program: program["graph_module"]["graph"]["tensor_values"].clear(), "what sizes"),
    ],
)  # fmt: skip
def test_programs_that_make_no_sense(copy, edit, text):
    refused_edit(copy, "model.json", edit, text)


def test_names_cannot_become_source(tmp_path, copy):
    """Hostile names of values and weights: the program still is what it was."""
    hostile = "x'); open('{}', 'w') #".format(tmp_path / "written")
    text = members(copy)
    for old in ("p_first_weight", "d_c0", "features_c0", "embedding"):
        text = {
            name: data.replace(
                f'"name": "{old}"'.encode(), f'"name": "{hostile + old}"'.encode()
            ).replace(f'"{old}":'.encode(), f'"{hostile + old}":'.encode())
            for name, data in text.items()
        }
    for name in list(text):
        if name.endswith(".json"):
            text[name] = text[name].replace(b'"unused"', f'"{hostile}"'.encode())
    copy.write_bytes(packed(text))
    read_archive(copy).module(*tower_inputs().values())
    assert not (tmp_path / "written").exists()


def test_an_archive_that_was_packed_again(copy):
    """Its weights are at odd addresses; a compressed one is refused."""
    model = read_archive(copy).module(*tower_inputs().values())
    found = members(copy)
    copy.write_bytes(packed({"tower/x": b"x", **found}))
    again = read_archive(copy).module(*tower_inputs().values())
    torch.testing.assert_close(again, model, rtol=0, atol=0)
    copy.write_bytes(packed(found, zipfile.ZIP_DEFLATED))
    refusal(copy, "is compressed or encrypted; write the archive again")


def test_changed_bytes_are_seen(copy):
    data = bytearray(copy.read_bytes())
    at = data.index(b"schema_version")
    data[at] ^= 1
    copy.write_bytes(data)
    refusal(copy, "is damaged: the bytes of .* are not those that were written")


def test_a_directory_that_says_too_much(copy):
    data = bytearray(packed(members(copy)))
    entry = data.rindex(b"PK\1\2")
    struct.pack_into("<2I", data, entry + 20, 2**31, 2**31)
    copy.write_bytes(data)
    refusal(copy, "its members have .* bytes, the file has")
    copy.write_bytes(data[:-100])
    refusal(copy, "is no zip archive, or is cut short")


def test_reading_leaves_the_file_as_it_is(copy):
    before = copy.read_bytes()
    found = read_archive(copy)
    found.module.low.fill_(3)
    assert copy.read_bytes() == before and found.module.low[0] == 3
