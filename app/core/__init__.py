"""Technology without domain terms: database, bus, network, jobs, errors, ids, paging, validation, telemetry."""
