"""Prints number and digest of the rows that a file's messages must make: python3 digest.py flights|webhooks FILE.gz

A row is a line, the columns apart by tabs; the lines are sorted by their bytes. Nothing of semel has a part in it.
"""

import gzip, hashlib, json, sys
from fractions import Fraction


def flight(m):
    # As COPY writes text; no column here has a backslash, a tab or a line end.
    return "\t".join("\\N" if m[c] is None else str(m[c]) for c in (
        "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay carrier flight tailnum"
        " origin dest air_time distance hour minute time_hour").split())


def webhook(m):
    return canonical(m["event"]) + "\t" + canonical(m["payload"])


def canonical(v):
    """One text for each JSON value: numbers as fractions, exact; strings after their length; names sorted."""
    if v is None or isinstance(v, bool):
        return json.dumps(v)
    if isinstance(v, Fraction):
        return f"{v.numerator}/{v.denominator}"
    if isinstance(v, str):
        return f"{len(v.encode())}:{v}"
    if isinstance(v, list):
        return "[" + ",".join(map(canonical, v)) + "]"
    return "{" + ",".join(canonical(k) + "=" + canonical(v[k]) for k in sorted(v, key=str.encode)) + "}"


of, name = sys.argv[1:]
row = {"flights": flight, "webhooks": webhook}[of]
number = Fraction if of == "webhooks" else int
lines = [row(json.loads(l, parse_int=number, parse_float=number)).encode() for l in gzip.open(name)]
print(len(lines), hashlib.sha256(b"".join(l + b"\n" for l in sorted(lines))).hexdigest())
