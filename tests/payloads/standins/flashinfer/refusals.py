"""How flashinfer says that it cannot."""


class BackendSupportedError(Exception):
    pass


def require_capability(function, backend, capability, known):
    if capability not in known:
        raise BackendSupportedError(
            f"{function} does not support backend '{backend}' with capability {capability}"
        )
