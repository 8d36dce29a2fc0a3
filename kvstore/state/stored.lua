-- What commit.lua and settle.lua have in common. layout.py describes how State is stored.
-- KEYS: launch, index, meta. ARGV: launch, prefix of all keys.

local index, meta, prefix = KEYS[2], KEYS[3], ARGV[2]
local lock, open = prefix .. 'lock', prefix .. 'open'
local function staged(transaction) return prefix .. 'staged:' .. transaction end

local function each_chunk(piece, visit)
    if string.byte(piece, 2) == 45 then return 0, true end  -- "-": it has none
    local id, count, bytes = string.match(piece, '^%a(%S+) (%d+) (%d+)')
    if not id then return 0, false end
    local total = 0
    for n = 0, tonumber(count) - 1 do total = total + visit(prefix .. 'chunk:' .. id .. ':' .. n) end
    return total, total == tonumber(bytes)
end
local function size(key) return redis.call('STRLEN', key) end
local function keep(key) redis.call('PERSIST', key); return 0 end
local function drop(key) redis.call('UNLINK', key); return 0 end

local function list_of(record) return string.match(record, '^%S+ l(%S+)') end

-- Deletes what a record refers to, unless its list is to be kept.
local function free(record, kept)
    local kind, id = string.match(record, '^%S+ ([vl])(%S+)')
    if kind == 'l' and id ~= kept then
        local name = prefix .. 'list:' .. id
        for _, piece in ipairs(redis.call('LRANGE', name .. ':big', 0, -1)) do each_chunk(piece, drop) end
        redis.call('UNLINK', name, name .. ':big')
    elseif kind == 'v' and id ~= '-' then
        each_chunk(string.match(record, '^%S+ (v[^\n]*)'), drop)
    end
end

-- Calls a command on a key with many further arguments.
local MOST_ARGUMENTS = 2000
local function call_with(command, key, arguments)
    for first = 1, #arguments, MOST_ARGUMENTS do
        redis.call(command, key, unpack(arguments, first, math.min(first + MOST_ARGUMENTS - 1, #arguments)))
    end
end

-- Moves records of a committed transaction to the index; an empty one deletes its key.
local function settle(transaction, keys, records)
    -- First a command that needs no memory: then a full server lets the script do the rest, too.
    call_with('HDEL', staged(transaction), keys)
    local new, deleted = {}, {}
    for n, key in ipairs(keys) do
        local old, record = redis.call('HGET', index, key), records[n]
        if old then free(old, list_of(record)) end
        if record == '' then
            deleted[#deleted + 1] = key
        else
            new[#new + 1] = key
            new[#new + 1] = record
        end
    end
    call_with('HDEL', index, deleted)
    call_with('HSET', index, new)
end
