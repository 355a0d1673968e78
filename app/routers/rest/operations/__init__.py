"""Resources for operators and administrators: keys, jobs, embedding spaces, health, statistics."""
