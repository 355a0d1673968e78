"""The key that an installation begins with: given by a setting, or made and kept in a file of the data folder."""

import asyncio
import os
from pathlib import Path

from app.core.errors import Unauthenticated, Unavailable
from app.core.telemetry import get_logger
from app.settings import Settings
from app.tenancy.keys import KeyText, generate_key, parse_key
from app.tenancy.service import Tenancy


def admin_key_path(settings: Settings) -> Path:
    """The file that holds the admin key made at the first start."""
    return settings.data_dir / "admin-key"


async def install_first_key(settings: Settings, tenancy: Tenancy) -> None:
    """Make the first key valid: BOOTSTRAP_KEY, or the one in the data directory, made where there is none yet.

    The file is written before the key is stored, so a crash in between leaves a file that the next start makes valid.
    """
    if settings.bootstrap_key is not None:
        key = parse_key(settings.bootstrap_key.get_secret_value())
        if key is None:
            raise Unavailable(
                "bootstrap_key_invalid",
                "TURNKEEP_BOOTSTRAP_KEY is not of the form that `turnkeep keys generate` prints.",
            )
        await _install(tenancy, key, name="bootstrap")
        return
    path = admin_key_path(settings)
    if not path.exists() and await tenancy.has_tenants():
        return
    key = await asyncio.to_thread(_read_or_make_key, path)
    await _install(tenancy, key, name="default")


async def _install(tenancy: Tenancy, key: KeyText, *, name: str) -> None:
    if await tenancy.install_key(key, name=name):
        get_logger().info("key.installed", key_id=key.key_id)
    try:
        await tenancy.authenticate(str(key))
    except Unauthenticated as error:
        # revoked on purpose, or TURNKEEP_SECRET_KEY is not what it was when the key was made
        get_logger().warning("key.refused", key_id=key.key_id, code=error.code)


def _read_or_make_key(path: Path) -> KeyText:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        # linked into place whole, so that two processes starting at once read the same key
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(f"{generate_key()}\n")
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    key = parse_key(path.read_text(errors="replace").strip())
    if key is None:
        raise Unavailable(
            "admin_key_file_invalid",
            f"{path} does not hold an API key: put the key back, or delete the file and use `turnkeep keys create`.",
        )
    return key
