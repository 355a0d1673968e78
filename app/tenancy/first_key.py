"""The first key of an installation: given by a setting, or created and kept in a file of the data folder."""

import asyncio
import os
from pathlib import Path

from app.core.errors import Unauthenticated, Unavailable
from app.core.ids import TenantId
from app.core.telemetry import get_logger
from app.settings import Settings
from app.tenancy.key_text import KeyText, generate_key, parse_key
from app.tenancy.service import Tenancy


def read_bootstrap_key(settings: Settings) -> KeyText | None:
    """Return the key of BOOTSTRAP_KEY, None without one; raise Unavailable for an invalid one."""
    if settings.tenancy.bootstrap_key is None:
        return None
    key = parse_key(settings.tenancy.bootstrap_key.get_secret_value())
    if key is None:
        raise Unavailable(
            "bootstrap_key_invalid", "TURNKEEP_BOOTSTRAP_KEY is not of the form that `turnkeep keys generate` prints."
        )
    return key


async def install_first_key(settings: Settings, tenancy: Tenancy) -> TenantId | None:
    """Make the first key valid: BOOTSTRAP_KEY, or the one in the data directory, created if missing.

    Returns the tenant at the first start of the installation if its admin key is in the file. The file is written
    before the key is stored, so a crash in between leaves a file that the next start makes valid.
    """
    bootstrap_key = read_bootstrap_key(settings)
    if bootstrap_key is not None:
        await _install(tenancy, bootstrap_key, name="bootstrap", tenant_name="bootstrap")
        return None
    path = settings.admin_key_path
    if not path.exists() and await tenancy.has_tenants():
        return None
    try:
        key = await asyncio.to_thread(_read_or_make_key, path)
    except OSError as error:
        raise Unavailable(
            "data_folder_not_writable",
            f"The administrator's key cannot be kept in the data folder: {error}. Choose a folder that this user can"
            " write, with TURNKEEP_DATA_DIR, or give the key as TURNKEEP_BOOTSTRAP_KEY.",
        ) from error
    return key.tenant_id if await _install(tenancy, key, name="admin key", tenant_name="default") else None


async def _install(tenancy: Tenancy, key: KeyText, *, name: str, tenant_name: str) -> bool:
    """Make the key valid; return whether it is new."""
    is_new = await tenancy.install_key(key, name=name, tenant_name=tenant_name)
    if is_new:
        get_logger().info("key.installed", key_id=key.key_id)
    try:
        await tenancy.authenticate(str(key))
    except Unauthenticated as error:
        # revoked on purpose, or TURNKEEP_SECRET_KEY has changed since the key was created
        get_logger().warning("key.refused", key_id=key.key_id, code=error.code)
    return is_new


def _read_or_make_key(path: Path) -> KeyText:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        # linked into place when complete, so that two processes starting at once read the same key
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
            f"{path} has no valid API key in it: put the key back, or delete the file and use `turnkeep keys create`.",
        )
    return key
