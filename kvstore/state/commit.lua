-- Commits a transaction. The fence of fence.py is prepended; layout.py describes how State is stored.
-- KEYS: launch, index, meta, acknowledgement, acknowledgement of the transaction before it.
-- ARGV: launch, prefix of all keys, expiry of the acknowledgement and of the one before it in ms, 1 if it is upkeep,
-- the newest commit that the caller knows of, number of reads, for each read its key and version,
-- then for each write: name, key, id for a new list, number of pieces, pieces; the piece of an increment is the amount.
-- Everything is checked before the first write, so nothing is ever applied in part.

local index, meta, prefix, at = KEYS[2], KEYS[3], ARGV[2], 7
local ABSENT = '0 '

local commits = redis.call('HGET', meta, 'commits') or '0'
if tonumber(commits) < tonumber(ARGV[6]) then return on_primary('rewound', commits) end
local known = redis.call('GET', KEYS[4])
if known then
    redis.call('PEXPIRE', KEYS[4], ARGV[3])  -- a write, for which replicas are waited for once more
    return {'ok', known}
end

local function take() at = at + 1; return ARGV[at - 1] end
local function record(key) return redis.call('HGET', index, key) or ABSENT end

for _ = 1, tonumber(take()) do
    local key, version = take(), take()
    local now
    if key == '' then now = redis.call('HGET', meta, 'keys') or '0' else now = string.match(record(key), '^%S+') end
    if now ~= version then return on_primary('conflict', key) end
end

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

local MAX_COUNT = 2^53 - 1  -- beyond it two integers can have the same floating-point value
local function counted(key, by)
    local old = record(key)
    local count = old == ABSENT and '0' or string.match(old, '^%S+ n(%-?%d+)\n$')
        or string.match(old, '^%S+ v%- 0 %d+ %d+\n....(%-?%d+)$')
    local sum = count and tonumber(count) + tonumber(by)
    if sum and math.abs(tonumber(count)) <= MAX_COUNT and math.abs(sum) <= MAX_COUNT then return string.format('%.0f', sum) end
end

local writes, frees_only = {}, true
while at <= #ARGV do
    local write = {name = take(), key = take(), list = take(), pieces = {}}
    local count = tonumber(take())
    if write.name == 'increment' then
        write.count = counted(write.key, take())
        if not write.count then return on_primary('notacounter', write.key) end
    else
        for n = 1, count do
            write.pieces[n] = take()
            local _, whole = each_chunk(write.pieces[n], size)
            if not whole then return on_primary('torn', write.key) end
        end
    end
    if write.name == 'append' and string.match(record(write.key), '^%S+ [vn]') then return on_primary('notalist', write.key) end
    if write.name ~= 'delete' then frees_only = false end
    writes[#writes + 1] = write
end
if #writes == 0 then return on_primary('ok', commits) end

-- A server without memory refuses a script's first write, unless it is one that needs none.
if frees_only then redis.call('HDEL', meta, '') end
if ARGV[5] == '1' then redis.call('HINCRBY', meta, 'upkeep', 1) end
local version, key_set_changed = string.format('%.0f', redis.call('HINCRBY', meta, 'commits', 1)), 0

local function free(record)
    local kind, id = string.match(record, '^%S+ ([vl])(%S+)')
    if kind == 'l' then
        local name = prefix .. 'list:' .. id
        for _, piece in ipairs(redis.call('LRANGE', name .. ':big', 0, -1)) do each_chunk(piece, drop) end
        redis.call('UNLINK', name, name .. ':big')
    elseif kind == 'v' and id ~= '-' then
        each_chunk(string.match(record, '^%S+ (v[^\n]*)'), drop)
    end
end
local function extend(list, pieces)
    local name = prefix .. 'list:' .. list
    for _, piece in ipairs(pieces) do
        redis.call('RPUSH', name, piece)
        if not string.match(piece, '^%a%- ') then redis.call('RPUSH', name .. ':big', string.match(piece, '^[^\n]*')) end
    end
end
local function put(key, rest)
    key_set_changed = key_set_changed + redis.call('HSET', index, key, version .. ' ' .. rest)
end

for _, write in ipairs(writes) do
    for _, piece in ipairs(write.pieces) do each_chunk(piece, keep) end
    if write.name == 'append' then
        local list, count = string.match(record(write.key), '^%S+ l(%S+) (%d+)')
        list, count = list or write.list, tonumber(count or '0')
        extend(list, write.pieces)
        put(write.key, 'l' .. list .. ' ' .. count + #write.pieces .. '\n')
    elseif write.name == 'increment' then
        put(write.key, 'n' .. write.count .. '\n')
    else
        free(record(write.key))
        if write.name == 'value' then
            put(write.key, write.pieces[1])
        elseif write.name == 'list' then
            extend(write.list, write.pieces)
            put(write.key, 'l' .. write.list .. ' ' .. #write.pieces .. '\n')
        else
            key_set_changed = key_set_changed + redis.call('HDEL', index, write.key)
        end
    end
end
if key_set_changed > 0 then redis.call('HINCRBY', meta, 'keys', 1) end
redis.call('SET', KEYS[4], version, 'PX', ARGV[3])
-- Whoever begins a transaction has got the answer to the one before it.
if KEYS[5] ~= KEYS[4] then redis.call('PEXPIRE', KEYS[5], ARGV[4]) end
return {'ok', version}
