-- The five tables of the room. A schema of its own keeps them apart from what else is in the database.
CREATE SCHEMA IF NOT EXISTS callroom;

CREATE TABLE IF NOT EXISTS callroom.chat_messages (
    id uuid PRIMARY KEY, -- given by the page: a message that is sent again is the same row
    room text NOT NULL,
    user_id text NOT NULL,
    body text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Who is in a room, for the database: pages ask runnel who is connected. Joining is an INSERT, leaving is a DELETE. `session` tells a tab from the one before it.
CREATE TABLE IF NOT EXISTS callroom.presence (
    room text,
    user_id text,
    session uuid NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (room, user_id)
);
ALTER TABLE callroom.presence REPLICA IDENTITY FULL; -- compacted topics need the whole old row

-- The call of a room: one row, updated.
CREATE TABLE IF NOT EXISTS callroom.call_state (
    room text PRIMARY KEY,
    state text NOT NULL CHECK (state IN ('idle', 'ringing', 'active')),
    user_id text NOT NULL, -- who changed it
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
ALTER TABLE callroom.call_state REPLICA IDENTITY FULL;

-- Frames and sound have a time to live: `keep` in relay.toml. Until then they are rows like any others.
CREATE TABLE IF NOT EXISTS callroom.video_frames (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    room text NOT NULL,
    user_id text NOT NULL,
    taken double precision NOT NULL, -- by the sender: milliseconds since 1970, by the server's clock
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    frame bytea NOT NULL -- a JPEG
);
ALTER TABLE callroom.video_frames ALTER frame SET STORAGE EXTERNAL; -- compressed already
CREATE INDEX IF NOT EXISTS video_frames_at ON callroom.video_frames (at);

CREATE TABLE IF NOT EXISTS callroom.audio_frames (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    room text NOT NULL,
    user_id text NOT NULL,
    taken double precision NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    samples bytea NOT NULL -- 100 ms: 16 kHz, 16 bits, one channel
);
CREATE INDEX IF NOT EXISTS audio_frames_at ON callroom.audio_frames (at);

-- This process starts: people of an earlier one have gone.
DELETE FROM callroom.presence;
UPDATE callroom.call_state SET state = 'idle', at = clock_timestamp() WHERE state <> 'idle';
