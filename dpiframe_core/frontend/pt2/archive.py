"""A PyTorch model as torch.export.save writes it (a .pt2 archive), read as untrusted input.

No pickle is read, no text of the file is evaluated, nothing is unpacked to disk, and no operator
runs; torch.export.load does not promise that. The archive's layout:

NAME/archive_format                        "pt2"
NAME/models/MODEL.json                     the program: graph, signature, sizes (`export_schema`)
NAME/data/weights/MODEL_weights_config.json      of each parameter and buffer: which file, what view
NAME/data/weights/weight_0, ...            bytes of weights
NAME/data/constants/...                    the same for tensors that are in no state_dict
NAME/data/sample_inputs/MODEL.pt           pickled, not read
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import BaseModel, ValidationError

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.pt2 import export_schema as schema
from dpiframe_core.frontend.pt2.archived_module import ArchivedInput as ArchivedInput
from dpiframe_core.frontend.pt2.archived_module import ArchivedModule as ArchivedModule
from dpiframe_core.frontend.pt2.archived_module import rebuild
from dpiframe_core.frontend.pt2.stored_tensors import stored_tensors
from dpiframe_core.frontend.pt2.stored_zip import StoredZip
from dpiframe_core.model.fields import problems

SCHEMA_MAJOR = 8
MOST_JSON_BYTES = 64 << 20
MOST_ERROR_LETTERS = 1000
_SAVE_ANEW = "export the model again with torch 2.9 or later and save it with torch.export.save"
_AnyModel = TypeVar("_AnyModel", bound=BaseModel)


def read_archive(path: str | Path) -> ArchivedModule:
    """Read a model of torch 2.9 or later; ModelImportError says what is wrong, and what to do."""
    try:
        return _read(StoredZip(Path(path)))
    except ModelImportError as error:
        text = "".join(c if c.isprintable() else "?" for c in str(error)[:MOST_ERROR_LETTERS])
        raise ModelImportError(f"{path}: {text}") from None


def _read(archive: StoredZip) -> ArchivedModule:
    root, model = _find_model(archive)
    program_file = f"{root}/models/{model}.json"
    header = _parse(archive, program_file, schema.Header)
    if header.schema_version.major != SCHEMA_MAJOR:
        raise ModelImportError(
            f"was written by torch {header.torch_version[:40]} with export schema "
            f"{header.schema_version.major}, only {SCHEMA_MAJOR} can be read; {_SAVE_ANEW}"
        )
    program = _parse(archive, program_file, schema.ExportedProgram)
    tensors: dict[str, torch.Tensor] = {}
    parameters: set[str] = set()
    for kind in ("weights", "constants"):
        folder = f"{root}/data/{kind}"
        config = _parse(archive, f"{folder}/{model}_{kind}_config.json", schema.PayloadConfig)
        found = stored_tensors(archive, folder, config.config)
        if twice := tensors.keys() & found.keys():
            raise ModelImportError(f"two weights are named {min(twice)}; {_SAVE_ANEW}")
        tensors |= found
        parameters |= {name for name, payload in config.config.items() if payload.is_param}
    return rebuild(program, tensors, parameters)


def _find_model(archive: StoredZip) -> tuple[str, str]:
    """The folder that all members are in, and the name of the one model."""
    names = archive.names
    old = [name for name in names if name.endswith("serialized_exported_program.json")]
    if old:
        raise ModelImportError(
            f"was saved by torch before 2.8, which pickled weights; a pickle is never read: "
            f"{_SAVE_ANEW}"
        )
    root = names[0].split("/")[0] if names else ""
    if f"{root}/archive_format" not in names or not _is(archive, f"{root}/archive_format", b"pt2"):
        raise ModelImportError(
            "is no archive of torch.export.save (what torch.save, TorchScript and "
            f"AOTInductor write is not read); {_SAVE_ANEW}"
        )
    if not _is(archive, f"{root}/byteorder", b"little"):
        raise ModelImportError("was saved on a big-endian machine; save it on another one")
    found = [re.fullmatch(re.escape(root) + r"/models/([^/]+)\.json", name) for name in names]
    models = [match[1] for match in found if match]
    if len(models) != 1:
        raise ModelImportError(f"has {len(models)} models {models[:9]}, not one; save one alone")
    if f"{root}/data/weights/{models[0]}.pt" in names:
        raise ModelImportError(
            f"was saved by torch 2.8, which pickled weights; a pickle is never read: {_SAVE_ANEW}"
        )
    return root, models[0]


def _is(archive: StoredZip, name: str, wanted: bytes) -> bool:
    return archive.size(name) == len(wanted) and bytes(archive.data(name)) == wanted


def _parse(archive: StoredZip, name: str, part: type[_AnyModel]) -> _AnyModel:
    size = archive.size(name)
    if size > MOST_JSON_BYTES:
        raise ModelImportError(f"{name} has {size} bytes, at most {MOST_JSON_BYTES} are read")
    try:
        return part.model_validate_json(bytes(archive.data(name)))
    except ValidationError as error:
        raise ModelImportError(
            f"{name} is not as torch writes it: {problems(error)[:300]}; {_SAVE_ANEW}"
        ) from None
