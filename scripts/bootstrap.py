"""Build .venv from the hashed lock; standard library only, quick when nothing has changed.

Invariant: what ends up in .venv is what requirements.lock says, checked by hash, whichever
installer and whichever index brought it. Where packages come from is the caller's business: every
PIP_* variable and pip.conf is honoured, for uv too, and no index is named here.

    python3 scripts/bootstrap.py           build or refresh .venv
    python3 scripts/bootstrap.py --lock    resolve again and rewrite requirements.lock
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
PYPROJECT = ROOT / "pyproject.toml"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
STAMP = VENV / ".bootstrap-stamp"

OLDEST = (3, 11)
NEWER = ("python3.11", "python3.12", "python3.13", "python3.14")
TAIL_LINES = 25
"""How much of a failed command's output is shown."""

# wheels only: a source package would run its own code before anybody looked at it
FROM_LOCK = ("--no-deps", "--require-hashes", "--only-binary", ":all:")

# pip's word for where packages come from, and uv's
SAME_SETTING = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "trusted-host": "UV_INSECURE_HOST",
}
# uv separates these by commas, pip by spaces
COMMAS = {"UV_FIND_LINKS"}


class Failed(Exception):
    """Something the person at the keyboard has to put right; the text says what."""


def say(text: str) -> None:
    """Tell the progress on stderr; stdout stays free for whoever calls us."""
    print(f"bootstrap: {text}", file=sys.stderr, flush=True)


def call(argv: list[str], *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command from the root of the tree, its output kept for ``tail``."""
    return subprocess.run(  # noqa: S603 - only commands spelled out in this file
        argv,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def tail(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last lines of a command's output, indented."""
    lines = done.stdout.strip().splitlines()[-TAIL_LINES:]
    return "\n".join(f"    {line}" for line in lines)


def must(what: str, argv: list[str], *, env: dict[str, str] | None = None) -> str:
    """Run a command and return its output; raise Failed with the end of it if it fails."""
    done = call(argv, env=env)
    if done.returncode != 0:
        message = f"cannot {what}: {' '.join(argv)} ended with {done.returncode}\n{tail(done)}"
        raise Failed(message)
    return done.stdout


def wanted_stamp() -> str:
    """Return the hash of everything that decides what .venv holds.

    Of pyproject.toml only the build and project tables count: a changed lint rule installs nothing.
    """
    import tomllib

    tables = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    parts = (
        str(ROOT),
        ".".join(map(str, sys.version_info[:2])),
        repr(tables.get("build-system")),
        repr(tables.get("project")),
        LOCK.read_text(encoding="utf-8"),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def is_current(stamp: str) -> bool:
    """Say whether .venv was built from exactly this stamp and still stands."""
    try:
        if STAMP.read_text(encoding="utf-8") != stamp:
            return False
    except FileNotFoundError:
        return False
    return PYTHON.exists() and UV.exists()


def find_python() -> None:
    """Go on under a newer interpreter when this one is too old; raise Failed if there is none."""
    if sys.version_info[:2] >= OLDEST:
        return
    for name in NEWER:
        found = shutil.which(name)
        # a version manager's shim exists for versions that are not switched on: ask it
        if found and call([found, "-c", "import tomllib"]).returncode == 0:
            os.execv(found, [found, *sys.argv])  # noqa: S606 - the same script, another interpreter
    have = ".".join(map(str, sys.version_info[:3]))
    message = (
        f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed, this is {have}: install python3.11"
    )
    raise Failed(message)


def make_venv() -> None:
    """Create .venv with pip in it, by the first of the ways that works here."""
    if works(PYTHON, "from pip import main"):
        return
    if VENV.exists():
        say("the .venv here is broken or half built: making a new one")
        shutil.rmtree(VENV)
    if venv_by_itself() or venv_by_system_pip() or venv_by_apt():
        return
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    message = (
        f"{sys.executable} has neither ensurepip nor pip and cannot make a .venv.\n"
        f"    On Debian or Ubuntu: apt-get install python{version}-venv, then run this again."
    )
    raise Failed(message)


def works(python: str | Path, statement: str) -> bool:
    """Say whether that interpreter starts and runs the statement."""
    try:
        return call([str(python), "-c", statement]).returncode == 0
    except OSError:
        return False


def venv_by_itself() -> bool:
    """The usual way: venv and ensurepip come with this Python."""
    if not works(sys.executable, "import venv; from ensurepip import version"):
        return False
    say("creating .venv")
    done = call([sys.executable, "-m", "venv", str(VENV)])
    if done.returncode == 0:
        return True
    say(f"that did not work:\n{tail(done)}")
    shutil.rmtree(VENV, ignore_errors=True)
    return False


def venv_by_system_pip() -> bool:
    """Debian without python3-venv but with python3-pip: an empty venv, filled from outside."""
    if not works(sys.executable, "import venv; from pip import main"):
        return False
    say("creating .venv without ensurepip, by the system's pip")
    must("create .venv", [sys.executable, "-m", "venv", "--without-pip", str(VENV)])
    pip = [sys.executable, "-m", "pip", "--python", str(PYTHON), "install", "--quiet", "pip"]
    done = call(pip)
    if done.returncode == 0:
        return True
    say(f"the system's pip could not do it:\n{tail(done)}")
    shutil.rmtree(VENV)
    return False


def venv_by_apt() -> bool:
    """Debian without both, as root: install the package that brings ensurepip."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return False
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    say("installing python3-venv with apt-get")
    call([apt, "update", "-qq"], env=env)  # a stale list may still do: the install decides
    install = [apt, "install", "-y", "-qq", "--no-install-recommends"]
    done = call([*install, f"python{version}-venv"], env=env)
    if done.returncode != 0:
        done = call([*install, "python3-venv"], env=env)
    if done.returncode != 0:
        say(f"apt-get could not install it:\n{tail(done)}")
        return False
    return venv_by_itself()


def uv_environment(*, extras: bool = True) -> dict[str, str]:
    """Return the environment in which uv looks for packages where pip would.

    ``extras``: also pip's second-rank places. A lock is resolved without them, so that a folder of
    wheels on one machine cannot decide what everybody gets.
    """
    env = dict(os.environ)
    for line in call([str(PYTHON), "-m", "pip", "config", "list"]).stdout.splitlines():
        found = re.match(r"(?:global|install|:env:)\.([a-z-]+)='(.*)'$", line)
        if found is None or found[1] not in SAME_SETTING or not found[2]:
            continue
        if not extras and found[1] in {"extra-index-url", "find-links"}:
            continue
        name, value = SAME_SETTING[found[1]], found[2]
        if name in COMMAS:
            value = ",".join(value.split())
        if name not in os.environ:  # what was said to uv itself goes first
            env[name] = value
    # with several indexes take a file from whichever has it: the hash decides, not the place
    env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    env.setdefault("UV_NO_PROGRESS", "1")
    env["UV_PYTHON_DOWNLOADS"] = "never"
    return env


def pinned_uv() -> tuple[str, str]:
    """Return uv's version in the lock and its lines there, hashes included."""
    text = LOCK.read_text(encoding="utf-8")
    found = re.search(r"^uv==(\S+)(?: \\\n +--hash=\S+)+$", text, re.MULTILINE)
    if found is None:
        message = f"{LOCK.name} pins no uv: run make lock with a uv on the PATH"
        raise Failed(message)
    return found[1], found[0]


def install_uv() -> bool:
    """Put the uv of the lock into .venv with pip; return whether it runs."""
    version, lines = pinned_uv()
    with contextlib.suppress(OSError):
        if f" {version} " in call([str(UV), "--version"]).stdout + " ":
            return True
    say(f"installing uv {version}")
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as only_uv:
        only_uv.write(lines + "\n")
        only_uv.flush()
        done = pip_install(*FROM_LOCK, "-r", only_uv.name)
    if done.returncode != 0:
        say(f"no uv for this machine, pip will do its work:\n{tail(done)}")
    return done.returncode == 0


def pip_install(*args: str) -> subprocess.CompletedProcess[str]:
    """Install into .venv with its own pip."""
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return call([*pip, *args])


def install_lock(*, with_uv: bool) -> None:
    """Install every package of the lock by hash: uv if it can, else pip (ten times slower)."""
    if with_uv:
        say(f"installing the packages of {LOCK.name}")
        uv = [str(UV), "pip", "install", "--python", str(PYTHON)]
        done = call([*uv, *FROM_LOCK, "-r", str(LOCK)], env=uv_environment())
        if done.returncode == 0:
            return
        say(f"uv could not install them, trying pip:\n{tail(done)}")
    say(f"installing the packages of {LOCK.name} with pip (this takes minutes)")
    done = pip_install(*FROM_LOCK, "-r", str(LOCK))
    if done.returncode != 0:
        message = (
            f"the packages of {LOCK.name} cannot be installed. pip takes its index, proxy and\n"
            f"    certificate from PIP_INDEX_URL, PIP_PROXY, PIP_CERT or pip.conf.\n{tail(done)}"
        )
        raise Failed(message)


def install_project() -> None:
    """Install fleetd itself, editable; hatchling comes from the lock, nothing is fetched."""
    say("installing fleetd, editable")
    done = pip_install("--no-deps", "--no-build-isolation", "--no-index", "-e", str(ROOT))
    if done.returncode != 0:
        message = f"fleetd itself cannot be installed:\n{tail(done)}"
        raise Failed(message)


def build() -> None:
    """Build .venv, unless it is current."""
    stamp = wanted_stamp()
    if is_current(stamp):
        return
    with LOCK.open(encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # two makes at once: the second waits and finds it done
        if is_current(stamp):
            return
        start = time.monotonic()
        make_venv()
        STAMP.unlink(missing_ok=True)
        install_lock(with_uv=install_uv())
        install_project()
        STAMP.write_text(stamp, encoding="utf-8")
        say(f"done in {time.monotonic() - start:.0f} s")


def lock() -> None:
    """Resolve pyproject.toml again and rewrite the lock, naming no index and no path."""
    make_venv()
    uv = str(UV) if UV.exists() else shutil.which("uv")
    if uv is None:
        must("install uv", [str(PYTHON), "-m", "pip", "install", "--quiet", "uv"])
        uv = str(UV)
    say(f"resolving {LOCK.name}")
    must(
        f"resolve {LOCK.name}",
        [
            *(uv, "pip", "compile", PYPROJECT.name, "--output-file", LOCK.name, "--upgrade"),
            *("--universal", "--python-version", "3.11", "--all-extras", "--group", "dev"),
            *("--generate-hashes", "--no-header", "--no-emit-index-url", "--no-emit-find-links"),
        ],
        env=uv_environment(extras=False),
    )
    for number, line in enumerate(LOCK.read_text(encoding="utf-8").splitlines(), 1):
        if "://" in line or "file:" in line:
            message = f"{LOCK.name}:{number} names where a package came from: {line.strip()}"
            raise Failed(message)


def main(args: list[str]) -> int:
    """Do what the arguments say; return the exit status."""
    try:
        find_python()
        if args == ["--lock"]:
            lock()
        elif args:
            say("takes no argument but --lock")
            return 2
        else:
            build()
    except Failed as failed:
        say(str(failed))
        return 1
    except KeyboardInterrupt:
        say("stopped; run it again to go on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
