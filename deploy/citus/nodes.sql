-- What an administrator does once for Turnkeep on a Citus of two workers; deploy/compose-citus.yml has it run at each
-- start. Run by psql as a superuser, on the coordinator, in the database to use, which all nodes have with the
-- extension citus. The login's password comes from DATABASE_PASSWORD.
\set ON_ERROR_STOP on
\getenv password DATABASE_PASSWORD

select exists (select from pg_roles where rolname = 'turnkeep') as done \gset
\if :done
    \quit
\endif
select citus_set_coordinator_host('coordinator.nodes', 5432);
select citus_add_node('worker-1.nodes', 5432);
select citus_add_node('worker-2.nodes', 5432);
create extension if not exists vector;
create extension if not exists btree_gin;
-- Citus repeats all of this on the workers. The coordinator enters them as the role of each transaction. All of it or
-- nothing: a start that was interrupted is repeated from the beginning.
begin;
create role turnkeep_app login;
create role turnkeep_ops login;
create role turnkeep_search login;
create role turnkeep login password :'password';
grant turnkeep_app, turnkeep_ops, turnkeep_search to turnkeep;
select format('alter database %I owner to turnkeep', current_database()) \gexec
select format('revoke connect, temporary on database %I from public', current_database()) \gexec
select format('grant connect on database %I to turnkeep_app, turnkeep_ops, turnkeep_search', current_database()) \gexec
commit;
