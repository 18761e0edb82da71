"""An HTTP server with OpenAI's protocol, on one session.

    session ── Engine (one thread: rounds) ── Ticket ── app (asyncio: HTTP) ── client

Needs `pip install paceline[serve]`.
"""
