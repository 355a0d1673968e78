"""Technology without product words: database, bus, jobs, errors, ids, paging, validation, telemetry."""
