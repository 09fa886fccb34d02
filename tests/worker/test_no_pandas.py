"""pyarrow does not import pandas for us, and recognises it all the same once the user has."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, pyarrow as pa
from cloudshard.worker.no_pandas import postpone_pandas
postpone_pandas()
pa.array([1, 2]); pa.table({"a": ["x"]})
assert "pandas" not in sys.modules, "a conversion has imported pandas"
import pandas as pd
assert pa.array(pd.Series([1.0, float("nan")])).null_count == 1, "a Series is not recognised"
assert pa.table({"a": [1]}).to_pandas().shape == (1, 1)
assert pa.Table.from_pandas(pd.DataFrame({"a": [None, "x"]})).column("a").null_count == 1
print("ok")
"""

WITHOUT_TELLING = """
import sys, pyarrow as pa
from cloudshard.worker.no_pandas import postpone_pandas
postpone_pandas()
assert pa.table({"a": [1]}).to_pandas().shape == (1, 1)
import pandas as pd
assert pa.array(pd.Series([1.0, float("nan")])).null_count == 1
print("ok")
"""


def test_pandas_comes_late_and_is_recognised() -> None:
    for program in (PROGRAM, WITHOUT_TELLING):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "ok", done.stderr
