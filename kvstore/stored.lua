-- What commit.lua and settle.lua have in common. state_layout.py describes how State is stored.
-- KEYS: launch, index, meta. ARGV: launch, prefix of all keys.

local index, meta, prefix = KEYS[2], KEYS[3], ARGV[2]
local lock, open = prefix .. 'lock', prefix .. 'open'
local function staged(transaction) return prefix .. 'staged:' .. transaction end

local function each_chunk(piece, visit)
    local id, count, bytes = string.match(piece, '^%a(%S+) (%d+) (%d+)')
    if not id then return 0, false end
    local total = 0
    for n = 0, tonumber(count) - 1 do total = total + visit(prefix .. 'chunk:' .. id .. ':' .. n) end
    return total, tonumber(count) == 0 or total == tonumber(bytes)
end
local function size(key) return redis.call('STRLEN', key) end
local function keep(key) redis.call('PERSIST', key); return 0 end
local function drop(key) redis.call('UNLINK', key); return 0 end

local function list_of(record) return string.match(record, '^%S+ l(%S+)') end

-- Deletes what a record refers to.
local function free(record)
    local list = list_of(record)
    if list then
        local name = prefix .. 'list:' .. list
        for _, piece in ipairs(redis.call('LRANGE', name .. ':big', 0, -1)) do each_chunk(piece, drop) end
        redis.call('UNLINK', name, name .. ':big')
    elseif string.match(record, '^%S+ v') then
        each_chunk(string.match(record, '^%S+ (v[^\n]*)'), drop)
    end
end

-- Moves one record of a committed transaction to the index; the empty record deletes the key.
local function settle(transaction, key, record)
    -- First a command that needs no memory: then a full server lets the script do the rest, too.
    redis.call('HDEL', staged(transaction), key)
    local old = redis.call('HGET', index, key)
    if old and (not list_of(old) or list_of(old) ~= list_of(record)) then free(old) end
    if record == '' then redis.call('HDEL', index, key) else redis.call('HSET', index, key, record) end
end
