"""OpenAI's form of a question, which llama.cpp's embedded engine takes as well."""

import base64
from typing import Any

from cuttlefish.inference.backend import Prompt

__all__ = ["user_message"]


def user_message(prompt: Prompt) -> dict[str, Any]:
    """A prompt as the one message of a chat, its images before its text. Takes a while for large images."""
    if not prompt.images:
        return {"role": "user", "content": prompt.text}
    urls = (f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}" for image in prompt.images)
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [*pictures, {"type": "text", "text": prompt.text}]}
