"""The code in an answer."""


def last_block(text: str) -> str | None:
    """What stands in an answer's last fenced block; None where there is none.

    As LiveCodeBench reads answers: between the last two lines that hold three backticks, whatever
    else these lines hold. In an answer that was cut off within a block, that is what stands between
    the blocks before it.
    """
    lines = text.split("\n")
    fences = [at for at, line in enumerate(lines) if "```" in line]
    if len(fences) < 2:
        return None
    return "\n".join(lines[fences[-2] + 1 : fences[-1]])
