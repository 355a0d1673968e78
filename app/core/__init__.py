"""Technology without domain terms: database, bus, jobs, errors, ids, paging, validation, telemetry."""
