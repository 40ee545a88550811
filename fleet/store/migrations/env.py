"""Alembic's entry: runs migrations on the engine that the store opened."""

from __future__ import annotations

from alembic import context

from fleet.store.tables import Base


def run() -> None:
    """Run the migrations in one transaction."""
    engine = context.config.attributes["engine"]
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            render_as_batch=True,
            compare_type=True,
        )
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()


run()
