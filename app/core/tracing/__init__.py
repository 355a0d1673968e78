"""Where the time of a call goes: its statements and stages, and spans of OpenTelemetry while traces are exported.

Public API: `call_record`, `stages` and `spans` for the code that is measured, and `export` for processes.
"""
