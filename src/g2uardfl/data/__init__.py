"""The data sets: catalogue, data folder, integrity checks, download and import.

A data folder holds `.npz` arrays, `.tsv.gz` tables and `.txt` lines, never pickles. `load_arrays`, `read_table` and
`read_lines` read them by their path relative to the folder; `fetch` and `import_dataset` store them there.
"""

from __future__ import annotations

from .catalogue import DATASETS, Dataset, NpmPackage, Original, StoredFile, find, names
from .checking import DatasetCheck, FileCheck, check_dataset, check_file
from .fetching import fetch, how_to_get
from .folder import data_dir, locate
from .importing import Imported, import_dataset
from .manifest import Entry, read_manifest, record
from .reading import load_arrays, read_lines, read_table
from .residual import decode_images, encode_images

__all__ = [
    "DATASETS",
    "Dataset",
    "DatasetCheck",
    "Entry",
    "FileCheck",
    "Imported",
    "NpmPackage",
    "Original",
    "StoredFile",
    "check_dataset",
    "check_file",
    "data_dir",
    "decode_images",
    "encode_images",
    "fetch",
    "find",
    "how_to_get",
    "import_dataset",
    "load_arrays",
    "locate",
    "names",
    "read_lines",
    "read_manifest",
    "read_table",
    "record",
]
