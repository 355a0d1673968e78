-- What an administrator of Postgres does once for Turnkeep; docker-compose.yml has it run when the volume is new.
-- Run by psql as a superuser, in the database to use. The login's password comes from DATABASE_PASSWORD.
\set ON_ERROR_STOP on
\getenv password DATABASE_PASSWORD

create extension vector;
create extension btree_gin;
create role turnkeep_app nologin;
create role turnkeep_ops nologin;
create role turnkeep_search nologin;
create role turnkeep login password :'password';
grant turnkeep_app, turnkeep_ops, turnkeep_search to turnkeep;
select format('alter database %I owner to turnkeep', current_database()) \gexec
select format('revoke connect, temporary on database %I from public', current_database()) \gexec
