-- Commits a transaction. state_layout.py describes how State is stored; the fence of fence.py is prepended to this script.
-- KEYS: launch, index, meta, acknowledgement, acknowledgement of the transaction before it.
-- ARGV: launch, expiry of the acknowledgement and of the one before it in ms, prefix of all keys, number of reads, for each
-- read its key and version,
-- then for each write: name, key, id for a new list, number of pieces, pieces; the piece of an increment is the amount.
-- Everything is checked before the first write, so a transaction is never applied in part.

local acknowledged = redis.call('GET', KEYS[4])
if acknowledged then return {'ok', acknowledged} end

local index, meta, prefix, at = KEYS[2], KEYS[3], ARGV[4], 5
local function take() at = at + 1; return ARGV[at - 1] end
local records = {}
local function record(key)
    records[key] = records[key] or redis.call('HGET', index, key) or '0 '
    return records[key]
end

for _ = 1, tonumber(take()) do
    local key, version = take(), take()
    local now
    if key == '' then now = redis.call('HGET', meta, 'keys') or '0' else now = string.match(record(key), '^%d+') end
    if now ~= version then return {'conflict', key} end
end

local function each_chunk(piece, visit)
    local id, count, bytes = string.match(piece, '^%a(%S+) (%d+) (%d+)')
    local total = 0
    for n = 0, tonumber(count) - 1 do total = total + visit(prefix .. 'chunk:' .. id .. ':' .. n) end
    return total, tonumber(count) == 0 or total == tonumber(bytes)
end
local function size(key) return redis.call('STRLEN', key) end
local function keep(key) redis.call('PERSIST', key); return 0 end
local function drop(key) redis.call('UNLINK', key); return 0 end

local MAX_COUNT = 2^53 - 1  -- beyond it two integers can have the same floating-point value
local function counted(key, by)
    local old = record(key)
    local count = old == '0 ' and '0' or string.match(old, '^%d+ n(%-?%d+)\n$')
        or string.match(old, '^%d+ v%- 0 %d+ %d+\n....(%-?%d+)$')
    local sum = count and tonumber(count) + tonumber(by)
    if sum and math.abs(tonumber(count)) <= MAX_COUNT and math.abs(sum) <= MAX_COUNT then return string.format('%.0f', sum) end
end

local writes = {}
while at <= #ARGV do
    local write = {name = take(), key = take(), list = take(), pieces = {}}
    local count = tonumber(take())
    if write.name == 'increment' then
        write.count = counted(write.key, take())
        if not write.count then return {'notacounter', write.key} end
    else
        for n = 1, count do
            write.pieces[n] = take()
            local _, whole = each_chunk(write.pieces[n], size)
            if not whole then return {'torn', write.key} end
        end
    end
    if write.name == 'append' and string.match(record(write.key), '^%d+ [vn]') then return {'notalist', write.key} end
    writes[#writes + 1] = write
end
if #writes == 0 then return {'ok', '0'} end

local version = string.format('%.0f', redis.call('HINCRBY', meta, 'commits', 1))
local key_set_changed = 0

local function free(key)
    local old = record(key)
    local list = string.match(old, '^%d+ l(%S+)')
    if list then
        local name = prefix .. 'list:' .. list
        for _, piece in ipairs(redis.call('LRANGE', name .. ':big', 0, -1)) do each_chunk(piece, drop) end
        redis.call('UNLINK', name, name .. ':big')
    elseif string.match(old, '^%d+ v') then
        each_chunk(string.match(old, '^%d+ (v[^\n]*)'), drop)
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
        local list, count = string.match(record(write.key), '^%d+ l(%S+) (%d+)')
        list = list or write.list
        extend(list, write.pieces)
        put(write.key, 'l' .. list .. ' ' .. (tonumber(count or '0') + #write.pieces) .. '\n')
    elseif write.name == 'increment' then
        put(write.key, 'n' .. write.count .. '\n')
    else
        free(write.key)
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
redis.call('SET', KEYS[4], version, 'PX', ARGV[2])
-- Whoever begins a transaction has got the answer to the one before it.
if KEYS[5] ~= KEYS[4] then redis.call('PEXPIRE', KEYS[5], ARGV[3]) end
return {'ok', version}
