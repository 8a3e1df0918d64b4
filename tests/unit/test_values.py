"""The generator of values, on a small contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from tools.values import Contract, module_text

PROTOS = Path(__file__).resolve().parents[2] / "protos"
INCLUDED = Path(protoc.__file__).parent / "_proto"
HEAD = """syntax = "proto3";
package fleet_protos.v1;
import "fleet_protos/v1/options.proto";
"""
EXPECTED_COLOUR = '''class Colour(IntEnum):
    """What it looks like."""

    UNKNOWN = 0
    RED = 1  # like a rose
'''
EXPECTED_GARDEN = '''@dataclass(frozen=True, slots=True)
class Rose:
    """A flower."""

    colour: Colour = Colour.UNKNOWN


@dataclass(frozen=True, slots=True)
class Tree:
    """Not a flower."""

    height_m: float = 0.0


Plant = (
    Rose
    | Tree
)


@dataclass(frozen=True, slots=True)
class Garden:
    """Where flowers grow; this sentence goes on so long that it does not fit into a line of one
    hundred.
    """

    name: str = "here"  # as on its gate
    # the sizes of all its beds, from the one at the gate to the one that is farthest from the gate
    sizes: tuple[int, ...] = ()
    owners: Mapping[str, float] = field(default_factory=dict)
    first: Rose = field(default_factory=Rose)
    key: str = field(default="", repr=False)
    open: bool = True
    plant: Plant | None = None
'''
GARDEN = """
// Where flowers grow; this sentence goes on so long that it does not fit into a line of one hundred.
message Garden {
  string name = 1 [(python_default) = "here"]; // as on its gate
  repeated uint32 sizes = 2; // the sizes of all its beds, from the one at the gate to the one that is farthest from the gate
  map<string, double> owners = 3;
  Rose first = 4;
  string key = 5 [debug_redact = true];
  bool open = 6 [(python_default) = "True"];
  oneof plant {
    Rose rose = 7;
    Tree tree = 8;
  }
}
// A flower.
message Rose {
  Colour colour = 1;
}
// Not a flower.
message Tree {
  double height_m = 1;
}
// What it looks like.
enum Colour {
  COLOUR_UNSPECIFIED = 0 [(python_member) = "UNKNOWN"];
  COLOUR_RED = 1; // like a rose
}
"""


def generated(folder: Path, text: str) -> str:
    """Return the module with the values of a .proto file with that text."""
    (folder / "garden.proto").write_text(HEAD + text)
    descriptors = folder / "descriptors"
    places = [f"-I{place}" for place in (folder, PROTOS, INCLUDED)]
    options = [f"--descriptor_set_out={descriptors}", "--include_source_info"]
    assert protoc.main(["protoc", *places, *options, "garden.proto"]) == 0
    contract = Contract.of(FileDescriptorSet.FromString(descriptors.read_bytes()))
    return module_text(contract.sources[0], contract)


def test_a_message_becomes_a_class_after_those_that_it_uses(tmp_path: Path) -> None:
    text = generated(tmp_path, GARDEN)
    assert EXPECTED_COLOUR in text
    assert text.endswith(EXPECTED_GARDEN)


def test_only_a_response_that_names_a_class_has_a_value(tmp_path: Path) -> None:
    text = generated(
        tmp_path,
        """
service Gate {
  rpc Open(OpenRequest) returns (OpenResponse);
}
message OpenRequest {}
// What is behind it.
message OpenResponse {
  option (python_class) = "View";
}
""",
    )
    assert "class View:" in text
    assert "OpenRequest" not in text


def test_a_message_without_a_comment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="comment"):
        generated(tmp_path, "message Bare {}")
