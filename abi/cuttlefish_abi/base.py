"""What all messages of the contract share: how strict they are, and the integers they use."""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["CONTRACT", "U32", "U64", "Message"]

U32 = Annotated[int, Field(ge=0, lt=2**32)]
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
