"""What all messages of the contract share: how strict they are, and the integers they use."""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

__all__ = ["CONTRACT", "U32", "U64", "Message", "OptionalObject", "OptionalU32", "PositiveU32", "absent_unless_known"]

U32 = Annotated[int, Field(ge=0, lt=2**32)]
PositiveU32 = Annotated[int, Field(ge=1, lt=2**32)]
U64 = Annotated[int, Field(ge=0, lt=2**64)]


def _tell_what_is_read(schema: dict[str, Any]) -> None:
    """Correct the JSON Schema of a model: tags have a default in Python and must still be there on the wire."""
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    tags = [name for name, form in properties.items() if "const" in form]
    for form in properties.values():
        form.pop("title", None)  # the name again, in capitals
    for name in tags:
        del properties[name]["default"]
    if tags:
        schema["required"] = [*tags, *schema.get("required", [])]


CONTRACT = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False, json_schema_extra=_tell_what_is_read)
"""How every model of the contract reads: nothing is converted, unknown fields are dropped."""


class Message(BaseModel):
    """One message of the contract. Strict: nothing is converted. Unknown extra fields are accepted and dropped, so that a
    newer block runs on an older host.
    """

    model_config = CONTRACT

    holds_any_json: ClassVar[bool] = False
    """Whether a field takes JSON of any form, which pydantic reads less strictly than its own types."""


def _refuse_null(value: object) -> object:
    if value is None:
        raise PydanticCustomError("null", "null where the field may only be left out")
    return value


OptionalU32 = Annotated[U32 | None, BeforeValidator(_refuse_null, json_schema_input_type=U32)]
"""None where it was left out; `null` on the wire is refused, as everywhere in the contract."""
OptionalObject = Annotated[dict[str, Any] | None, BeforeValidator(_refuse_null, json_schema_input_type=dict[str, Any])]


def absent_unless_known() -> Any:
    """A field that is left out, not null, where its value is not known. `Any`, because pydantic's fields are declared so."""
    return Field(default=None, exclude_if=lambda value: value is None)
