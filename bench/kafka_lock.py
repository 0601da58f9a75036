"""Makes streams/engine/kafka.lock from streams/engine/kafka.pom.xml by Maven, or with --check compares the two.

One line a jar: `GROUP:ARTIFACT:VERSION SHA256`. Needs `mvn` on the PATH.
"""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent / "streams" / "engine"
POM = ENGINE / "kafka.pom.xml"
LOCK = ENGINE / "kafka.lock"


def resolve(pom: Path) -> str:
    """The lock's text for a POM: the files that Maven copies for its runtime scope."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["-DincludeScope=runtime", "-Dmdep.useRepositoryLayout=true", f"-DoutputDirectory={folder}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *options], check=True)
        return "".join(sorted(_line(jar, Path(folder)) for jar in Path(folder).rglob("*.jar")))


def _line(jar: Path, root: Path) -> str:
    *group, artifact, version, _ = jar.relative_to(root).parts
    return f"{'.'.join(group)}:{artifact}:{version} {hashlib.sha256(jar.read_bytes()).hexdigest()}\n"


def main() -> int:
    """Writes the lock; with --check compares it: 0 when it is the same."""
    text = resolve(POM)
    if "--check" in sys.argv[1:]:
        same = LOCK.read_text() == text
        print(
            "kafka.lock is what Maven resolves"
            if same
            else "kafka.lock differs from what Maven resolves: run `make kafka-lock`"
        )
        return 0 if same else 1
    LOCK.write_text(text)
    print(f"kafka.lock: {text.count(chr(10))} jars")
    return 0


if __name__ == "__main__":
    sys.exit(main())
