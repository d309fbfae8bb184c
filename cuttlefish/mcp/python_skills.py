"""Plain Python functions as skills: the operator's own code, which runs in this process without a sandbox.

```python
from cuttlefish.mcp.python_skills import Context, skill


@skill(description="Counts the words of a text.", use_cases=["To see whether a text fits into a page."])
async def count_words(text: str, context: Context) -> int:
    context.progress({"done": 1, "total": 1})
    return len(text.split())
```
"""
